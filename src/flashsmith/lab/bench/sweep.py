"""Measures cases and keeps their rows, which are times on a GPU or counts on the emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flashsmith.configs import is_kernel_name
from flashsmith.errors import GpuLostError
from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.ceilings import Ceilings
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
from flashsmith.lab.bench.runner import CaseResult, Runner

Measure = Callable[[Case], list[R]]


def sweep(
    cases: Sequence[Case],
    measure: Measure[R],
    results: ResultFile[R],
    progress: Callable[[int, int, str], None],
) -> None:
    """Measures all candidates of each case together, and keeps the case's rows at once.

    A case with all its rows is skipped, so that an interrupted sweep continues. An incomplete case
    keeps only the rows of candidates that failed, because times of two runs are not compared.

    Raises:
        GpuLostError: A candidate broke the GPU's state for this process. A row records it, so that
            a new process continues without that candidate.
    """
    for done, case in enumerate(cases):
        workload = case.workload
        progress(done, len(cases), str(workload))
        rows = results.of(workload)
        if {row.kernel for row in rows} == {*case.candidates}:
            continue
        failed = {r.kernel: r for r in rows if r.status == FAILED and r.kernel in case.candidates}
        results.keep(lambda row, w=workload, f=failed: row.workload != w or row.kernel in f)  # type: ignore[misc]
        candidates = tuple(name for name in case.candidates if name not in failed)
        try:
            rows = measure(replace(case, candidates=candidates))
        except GpuLostError as error:
            of_culprit = {"status": FAILED, "reason": str(error), **results.shared}
            results.append([_row(results.kind, error.culprit, case, **of_culprit)])
            raise
        results.append(rows)
    progress(len(cases), len(cases), "")


def _row(kind: type[R], name: str, case: Case, **values: Any) -> R:
    return kind(name, KERNEL if is_kernel_name(name) else PEER, case.workload, **values)


def _row_of(kind: type[R], result: CaseResult, **numbers: Any) -> R:
    checked = result.checked
    if checked.comparison is not None:
        numbers["error"] = checked.comparison.error
        numbers["tolerance"] = checked.comparison.tolerance
    status = {"status": checked.status, "reason": checked.reason}
    return _row(kind, result.name, result.case, **status, **numbers)


def measure_times(
    runner: Runner, case: Case, regime: str, ceilings: Mapping[str, Ceilings]
) -> list[TimeRow]:
    """Times the candidates that are right; ``ceilings`` are by dtype."""
    ceiling = ceilings[str(case.workload.problem.dtype)]
    rows = []
    for result in runner.measure(case, [regime]):
        numbers: dict[str, float | None] = {}
        if timing := result.times.get(regime):
            tflops, best_peer_ms = case.workload.tflops(timing.ms), result.best_peer_ms(regime)
            numbers = {
                "ms": timing.ms,
                "ms_p20": timing.low,
                "ms_p80": timing.high,
                "tflops": tflops,
                "share_of_ceiling": tflops / ceiling.matmul_tflops,
                "ratio_to_best_peer": None if best_peer_ms is None else best_peer_ms / timing.ms,
            } | result.samples[regime]._asdict()
        rows.append(_row_of(TimeRow, result, regime=regime, **numbers))
    return rows


def measure_counts(case: Case) -> list[CountRow]:
    """Runs kernels on the emulator, and returns its counts."""
    columns = columns_of(CountRow)
    rows = []
    for result in Runner("cpu").measure(case, []):
        counted = {name: n for name, n in result.checked.counters.items() if name in columns}
        rows.append(_row_of(CountRow, result, **counted))
    return rows
