"""Measuring kernels on a GPU: checks, timers, peers, the stamp of where a number comes from."""

from flashsmith.bench.ceilings import Ceilings, measure_ceilings
from flashsmith.bench.grid import Problem, make_grid
from flashsmith.bench.peers import PEERS, Peer, find_peers, first_available
from flashsmith.bench.reference import (
    Comparison,
    attention_with_rounded_weights,
    compare,
    compare_lse,
    lse_tolerance,
    reference_attention,
    reference_by_head,
    reference_lse,
    score_error,
)
from flashsmith.bench.stamp import environment_stamp
from flashsmith.bench.timer import Timing, time_back_to_back, time_interleaved

__all__ = [
    "PEERS",
    "Ceilings",
    "Comparison",
    "Peer",
    "Problem",
    "Timing",
    "attention_with_rounded_weights",
    "compare",
    "compare_lse",
    "environment_stamp",
    "find_peers",
    "first_available",
    "lse_tolerance",
    "make_grid",
    "measure_ceilings",
    "reference_attention",
    "reference_by_head",
    "reference_lse",
    "score_error",
    "time_back_to_back",
    "time_interleaved",
]
