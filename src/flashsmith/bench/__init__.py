"""Measuring kernels on a GPU: checks, timers, peers, the stamp of where a number comes from."""

from flashsmith.bench.reference import Comparison, compare, reference_attention
from flashsmith.bench.stamp import environment_stamp
from flashsmith.bench.timer import Timing, time_interleaved

__all__ = [
    "Comparison",
    "Timing",
    "compare",
    "environment_stamp",
    "reference_attention",
    "time_interleaved",
]
