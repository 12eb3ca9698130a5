"""Measuring kernels on a GPU: checks, timers, peers, the stamp of where a number comes from."""

from flashsmith.bench.ceilings import Ceilings, measure_ceilings
from flashsmith.bench.grid import make_grid, make_qkv
from flashsmith.bench.peers import PEERS, Peer, find_peers, first_available
from flashsmith.bench.stamp import environment_stamp
from flashsmith.bench.timer import Timing, time_back_to_back, time_interleaved

__all__ = [
    "PEERS",
    "Ceilings",
    "Peer",
    "Timing",
    "environment_stamp",
    "find_peers",
    "first_available",
    "make_grid",
    "make_qkv",
    "measure_ceilings",
    "time_back_to_back",
    "time_interleaved",
]
