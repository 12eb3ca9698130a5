"""Measures candidates over shapes: times on a GPU, counts on the emulator."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flashsmith.configs import Workload
from flashsmith.errors import GpuLostError
from flashsmith.lab.bench.candidates import Candidate, Checked, Checker, Run, name_of
from flashsmith.lab.bench.ceilings import Ceilings
from flashsmith.lab.bench.monitor import Sample
from flashsmith.lab.bench.peers import Peer
from flashsmith.lab.bench.results import (
    FAILED,
    KERNEL,
    PEER,
    CountRow,
    R,
    ResultFile,
    TimeRow,
    columns_of,
)
from flashsmith.lab.bench.timer import Timing, rotated

Measure = Callable[[Workload, Sequence[Candidate]], list[R]]
Timer = Callable[[Mapping[str, Run]], Mapping[str, Timing]]


def sweep(
    plan: Mapping[Workload, Sequence[Candidate]],
    measure: Measure[R],
    results: ResultFile[R],
    progress: Callable[[int, int, str], None],
) -> None:
    """Measures all candidates of each workload together, and keeps the workload's rows at once.

    A workload whose rows are all there is left alone, so an interrupted sweep goes on where it was.
    Of one that is not complete only what failed stays: times of two runs are not compared.

    Raises:
        GpuLostError: A candidate broke the GPU's state for this process. That is kept, so that a
            new process goes on without it.
    """
    for done, (workload, candidates) in enumerate(plan.items()):
        progress(done, len(plan), str(workload))
        by_name = {name_of(candidate): candidate for candidate in candidates}
        if {row.kernel for row in results.of(workload)} == set(by_name):
            continue
        failed = {
            row for row in results.of(workload) if row.status == FAILED and row.kernel in by_name
        }
        results.keep(lambda row, w=workload, f=failed: row.workload != w or row in f)  # type: ignore[misc]
        for row in results.of(workload):
            by_name.pop(row.kernel, None)
        try:
            rows = measure(workload, list(by_name.values()))
        except GpuLostError as error:
            culprit = Checked(by_name[error.culprit], FAILED, str(error))
            results.append([make_row(results.kind, workload, culprit, **results.shared)])
            raise
        results.append(rows)
    progress(len(plan), len(plan), "")


def make_row(kind: type[R], workload: Workload, checked: Checked, **numbers: Any) -> R:
    if checked.comparison is not None:
        numbers["error"] = checked.comparison.error
        numbers["tolerance"] = checked.comparison.tolerance
    return kind(
        kernel=name_of(checked.candidate),
        kind=PEER if isinstance(checked.candidate, Peer) else KERNEL,
        workload=workload,
        status=checked.status,
        reason=checked.reason,
        **numbers,
    )


@dataclass(frozen=True)
class MeasureTimes:
    """Times what is right, together with the others of its workload.

    A timer is given the candidates in the order of the last time, rotated by one.
    """

    ceilings: Mapping[str, Ceilings]  # by dtype
    regime: str
    timer: Timer
    sample: Callable[[float], Sample]  # of the GPU, since a time.monotonic()
    device: str
    _turns: Iterator[int] = field(default_factory=itertools.count)

    def __call__(self, workload: Workload, candidates: Sequence[Candidate]) -> list[TimeRow]:
        checker = Checker(workload, self.device)
        checked = [checker.check(candidate) for candidate in candidates]
        runs = {name_of(c.candidate): c.run for c in checked if c.run is not None}
        start = time.monotonic()
        try:
            times = self.timer(rotated(runs, next(self._turns))) if runs else {}
        except Exception as error:
            reason = f"while it was timed with others: {type(error).__name__}: {error}"
            failed = [Checked(c.candidate, FAILED, reason) if c.run else c for c in checked]
            return [make_row(TimeRow, workload, c, regime=self.regime) for c in failed]
        sample = self.sample(start)
        peers = [
            times[name_of(c.candidate)] for c in checked if c.run and isinstance(c.candidate, Peer)
        ]
        best_peer_ms = min((timing.ms for timing in peers), default=None)
        rows = []
        for c in checked:
            numbers: dict[str, float | None] = {}
            if c.run is not None:
                timing = times[name_of(c.candidate)]
                numbers = self._numbers(workload, timing, best_peer_ms) | sample._asdict()
            rows.append(make_row(TimeRow, workload, c, regime=self.regime, **numbers))
        return rows

    def _numbers(
        self, workload: Workload, timing: Timing, best_peer_ms: float | None
    ) -> dict[str, float | None]:
        tflops = workload.tflops(timing.ms)
        return {
            "ms": timing.ms,
            "ms_p20": timing.low,
            "ms_p80": timing.high,
            "tflops": tflops,
            "share_of_ceiling": tflops / self.ceilings[str(workload.problem.dtype)].matmul_tflops,
            "ratio_to_best_peer": None if best_peer_ms is None else best_peer_ms / timing.ms,
        }


def measure_counts(workload: Workload, candidates: Sequence[Candidate]) -> list[CountRow]:
    """Runs kernels on the emulator, and reads what it counted."""
    checker = Checker(workload, "cpu")
    return [_counted(checker, checker.check(candidate)) for candidate in candidates]


def _counted(checker: Checker, checked: Checked) -> CountRow:
    if checked.run is None or isinstance(checked.candidate, Peer):
        return make_row(CountRow, checker.workload, checked)
    counts = checker.counters(checked.candidate)
    kept = {name: counts[name] for name in columns_of(CountRow) if name in counts}
    return make_row(CountRow, checker.workload, checked, **kept)
