"""Timing on the GPU by events: in turn with a flushed L2, back to back, and in a CUDA graph.

In turn is fair to short runs, because every candidate meets the same clocks and an L2 without its
data. Back to back is the state of a training loop, in which the kernel itself determines the GPU's
temperature, its clocks and the contents of L2.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

Run = Callable[[], object]
R = TypeVar("R", bound=Run)

_FLUSH_BYTES = 256 << 20  # several times the L2 of any GPU so far
# Seconds. Overwriting L2 alone takes 70 us, within which a host that was just woken, or that
# another process disturbs, does not always launch: half of a tuner's runs contained 30 to 60 us of
# waiting.
HEAD_START = 3e-4

WARMUP_MS = 400.0  # back to back, of work on a candidate before it is timed
PERIOD_MS = 800.0  # of the clock's swing at the power limit; see `time_back_to_back`
_MIN_LAUNCHES = 5  # back to back, even if one launch takes longer than the requested time
_LAUNCHES_AT_ONCE = 100  # with their events they fit the driver's queue, so the host never waits
_PACE_LAUNCHES = 5
_PACE_HEAD_START_MS = 2.0
_HEAD_START_MARGIN = 1.2
_CYCLES_PER_MS = 2_000_000  # at 2 GHz; a lower clock makes a head start longer, which is safe


@dataclass(frozen=True)
class Timing:
    """The times of one candidate, in milliseconds."""

    ms: float  # in turn the median, back to back the mean
    low: float  # 20th percentile
    high: float  # 80th percentile


def rotated(candidates: Mapping[str, R], turn: int) -> dict[str, R]:
    """Returns the candidates rotated by ``turn``, so that none is always the first after the checks
    or always behind the same other."""
    names = list(candidates)
    first = turn % max(len(names), 1)
    return {name: candidates[name] for name in names[first:] + names[:first]}


def time_interleaved(
    candidates: Mapping[str, Run],
    *,
    repeats: int = 30,
    warmup: int = 3,
    pause: float = 0.0,
    head_start: float = HEAD_START,
) -> dict[str, Timing]:
    """Times each candidate ``repeats`` times, in turn, so that all meet the same state of the GPU.

    L2 is overwritten before each run. The time is between two events on the stream. Overwriting
    and the head start keep the GPU busy while the host launches the run, so the launch cost is not
    in the time.

    Args:
        head_start: Seconds that the GPU waits beside the overwriting; calls through autograd cost
            the host more than the default.
        pause: Seconds without work before each run, so that the power drawn by earlier runs does
            not slow it down.
    """
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for _ in range(warmup):
        for run in candidates.values():
            run()
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in candidates}
    for _ in range(repeats):
        for name, run in candidates.items():
            if pause:
                torch.cuda.synchronize()
                time.sleep(pause)
            flush.zero_()
            _occupy(1e3 * head_start)
            start = _record()
            run()
            events[name].append((start, _record()))
    torch.cuda.synchronize()
    times = {
        name: [start.elapsed_time(stop) for start, stop in pairs] for name, pairs in events.items()
    }
    return {name: _timing(runs, statistics.median(runs)) for name, runs in times.items()}


def time_back_to_back(
    candidates: Mapping[str, Run],
    *,
    milliseconds: float = PERIOD_MS,
    warmup_ms: float = WARMUP_MS,
) -> dict[str, Timing]:
    """Times the candidates one after the other, each repeated without a pause or a flush of L2.

    A time is from the end of one launch to the end of the next. The host stays ahead of the GPU, so
    the launch cost is not in the time.

    At its power limit a GPU does not hold one clock. An H200 swings between 1.2 and 1.65 GHz with
    a period of 0.8 s, so that one kernel takes 25% longer in one moment than in the next. A time is
    therefore the mean over one period or more: 100 ms, always as long after the begin, catch the
    same phase each time. After a rest the same GPU runs at full clocks for a second, so the first
    candidate has an extra turn that does not count, and no rest follows.

    Args:
        milliseconds: The time for which the GPU works on each candidate while it is timed, or waits
            until the host has queued it.
        warmup_ms: The time for which it works on the candidate before, until its clocks and L2 are
            those of this kernel.
    """
    times = {}
    for i, (name, run) in enumerate(candidates.items()):
        if i == 0:
            _steady_times(run, milliseconds, warmup_ms)
        of_launches = _steady_times(run, milliseconds, warmup_ms)
        times[name] = _timing(of_launches, statistics.fmean(of_launches))
    return times


def time_in_graph(
    candidates: Mapping[str, Sequence[Run]], *, calls: int = 64, replays: int = 10
) -> dict[str, Timing]:
    """Times each candidate in a CUDA graph of many calls in sequence; returns the median over a few
    replays.

    A server replays a step so: the host has no part in the time. A candidate's runs take turns, as
    layers of a model do, so that a call finds in L2 what all of them share, but not what one call
    before it has read.
    """
    times = {}
    for name, runs in candidates.items():
        for _ in range(3):
            for run in runs:
                run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for run in itertools.islice(itertools.cycle(runs), calls):
                run()
        of_replays = []
        for _ in range(replays):
            start = _record()
            graph.replay()
            stop = _record()
            torch.cuda.synchronize()
            of_replays.append(start.elapsed_time(stop) / calls)
        times[name] = _timing(of_replays, statistics.median(of_replays))
    return times


def _steady_times(run: Run, milliseconds: float, warmup_ms: float) -> list[float]:
    """Returns the milliseconds of each launch."""
    gpu_ms, host_ms = _pace(run)
    # The GPU waits at first, so that the host queues the launches by which it would fall behind.
    # The wait counts as time: work of 10 us would take ten times as long as asked otherwise.
    head_start_ms = max(0.0, _HEAD_START_MARGIN * host_ms - gpu_ms)

    def launch(total_ms: float) -> list[list[torch.cuda.Event]]:
        left = max(_MIN_LAUNCHES, math.ceil(total_ms / (gpu_ms + head_start_ms)))
        queued = []
        while left > 0:
            count = min(left, _LAUNCHES_AT_ONCE)
            queued.append(_launch(run, count, count * head_start_ms))
            left -= count
        return queued

    launch(warmup_ms)
    queued = launch(milliseconds)
    torch.cuda.synchronize()
    return [ms for events in queued for ms in _between(events)]


def _pace(run: Run) -> tuple[float, float]:
    """Returns the milliseconds of one launch on the GPU, and of the host until it is queued."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    events = _launch(run, _PACE_LAUNCHES, _PACE_HEAD_START_MS)
    host_ms = 1e3 * (time.perf_counter() - begin) / _PACE_LAUNCHES
    torch.cuda.synchronize()
    return max(statistics.median(_between(events)), 1e-3), host_ms


def _launch(run: Run, count: int, head_start_ms: float) -> list[torch.cuda.Event]:
    """Queues launches; returns an event before the first and one after each."""
    _occupy(head_start_ms)
    events = [_record()]
    for _ in range(count):
        run()
        events.append(_record())
    return events


def _occupy(milliseconds: float) -> None:
    """Keeps the GPU busy with a kernel that touches neither L2 nor DRAM."""
    if milliseconds > 0:
        torch.cuda._sleep(int(milliseconds * _CYCLES_PER_MS))  # type: ignore[no-untyped-call]


def _record() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _between(events: list[torch.cuda.Event]) -> list[float]:
    return [before.elapsed_time(after) for before, after in itertools.pairwise(events)]


def _timing(times: list[float], ms: float) -> Timing:
    if len(times) == 1:
        return Timing(ms, ms, ms)
    # With few times, the exclusive method goes below the minimum, even below 0.
    quintiles = statistics.quantiles(times, n=5, method="inclusive")
    return Timing(ms, quintiles[0], quintiles[-1])
