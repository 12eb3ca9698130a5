"""Timing on the GPU by events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

_FLUSH_BYTES = 256 << 20  # several times the L2 of any GPU so far


@dataclass(frozen=True)
class Timing:
    """Times of one candidate, in milliseconds."""

    median: float
    low: float  # 20th percentile
    high: float  # 80th percentile


def time_interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    repeats: int = 30,
    warmup: int = 3,
    pause: float = 0.0,
) -> dict[str, Timing]:
    """Times each candidate ``repeats`` times, in turn, so that all meet the same state of the card.

    Before each run L2 is overwritten. The time is between two events on the stream; the overwriting
    keeps the GPU busy meanwhile, so the host's launch cost is not in it.

    Args:
        pause: Seconds without work before each run, so that the runs before it do not slow it down
            by the power that they drew.
    """
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for _ in range(warmup):
        for run in candidates.values():
            run()
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in candidates}
    for _ in range(repeats):
        for name, run in candidates.items():
            start, stop = (
                torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                for _ in range(2)
            )
            if pause:
                torch.cuda.synchronize()
                time.sleep(pause)
            flush.zero_()
            start.record()
            run()
            stop.record()
            events[name].append((start, stop))
    torch.cuda.synchronize()
    return {
        name: _timing([start.elapsed_time(stop) for start, stop in pairs])
        for name, pairs in events.items()
    }


def _timing(times: list[float]) -> Timing:
    if len(times) == 1:
        return Timing(times[0], times[0], times[0])
    quintiles = statistics.quantiles(times, n=5)
    return Timing(statistics.median(times), quintiles[0], quintiles[-1])
