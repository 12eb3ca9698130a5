"""The columns that files of cases can have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import torch

from flashsmith.configs import DType
from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.ceilings import measure_ceilings
from flashsmith.lab.bench.monitor import Sample
from flashsmith.lab.bench.operations.base import Run
from flashsmith.lab.bench.results import BACK_TO_BACK, IN_TURN
from flashsmith.lab.bench.runner import IN_GRAPH, CaseResult

_PASSES = {"forward": "forward", "training step": "both"}


@dataclass(frozen=True)
class Column:
    """A function that writes a cell, and the regime of the time that it needs; "": none."""

    write: Callable[[CaseResult], object]
    regime: str = ""

    def cell(self, measured: CaseResult) -> object:
        """Returns the cell, which is empty if its regime was not timed."""
        if self.regime and self.regime not in measured.times:
            return ""
        return self.write(measured)


def regimes_of(columns: Iterable[str]) -> Collection[str]:
    """Returns the regimes that columns need. Raises KeyError: A column is not known."""
    return list(dict.fromkeys(COLUMNS[name].regime for name in columns if COLUMNS[name].regime))


def row_of(columns: Iterable[str], measured: CaseResult) -> dict[str, object]:
    return {name: COLUMNS[name].cell(measured) for name in columns}


def _peak_mib(run: Run) -> float:
    """Returns the MiB that a call allocates at its peak, results included."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _of_case(read: Callable[[Case], object]) -> Column:
    return Column(lambda measured: read(measured.case))


def _sizes() -> dict[str, Column]:
    """Returns the columns of a case's sizes, under all names that files have for them."""
    of_problem = {name: name for name in ("d_head", "batch", "heads", "heads_kv", "dtype")}
    of_problem |= {"seq_len": "seq_len_q", "queries": "seq_len_q"}
    of_problem |= {"seq_len_k": "seq_len_k", "context": "seq_len_k"}
    return {
        column: _of_case(lambda case, field=field: getattr(case.workload.problem, field))  # type: ignore[misc]
        for column, field in of_problem.items()
    }


def _times(regime: str, prefix: str, ms_digits: int) -> dict[str, Column]:
    def of(write: Callable[[CaseResult, float], str]) -> Column:
        return Column(lambda measured: write(measured, measured.times[regime].ms), regime)

    def rate(measured: CaseResult, ms: float) -> str:
        return f"{measured.given.n_bytes / ms / 1e6:.0f}"

    def ratio(measured: CaseResult, ms: float) -> str:
        rival = measured.rival_ms(regime)
        return "" if rival is None else f"{rival / ms:.3f}"

    def percent(measured: CaseResult, ms: float) -> str:
        return f"{100 * (measured.rival_ms(regime) or ms) / ms:.1f}"

    def of_cublas(measured: CaseResult, ms: float) -> str:
        return f"{100 * measured.given.flop / ms / 1e9 / _cublas(measured):.1f}"

    return {
        f"{prefix}ms": of(lambda _, ms: f"{ms:.{ms_digits}f}"),
        f"{prefix}ms_p20": Column(lambda measured: f"{measured.times[regime].low:.5f}", regime),
        f"{prefix}ms_p80": Column(lambda measured: f"{measured.times[regime].high:.5f}", regime),
        f"{prefix}percent_of_fa2": of(percent),  # in files whose only peer is FA2
        f"{prefix}percent_of_cublas": of(of_cublas),
        f"{prefix}us": of(lambda _, ms: f"{1e3 * ms:.2f}"),
        f"{prefix}tflops": of(lambda measured, ms: f"{measured.given.flop / ms / 1e9:.1f}"),
        f"{prefix}gb_per_s": of(rate),
        f"{prefix}of_best_peer": of(ratio),
        f"{prefix}of_fa3": of(ratio),  # in files whose only peer is FA3
    }


def _sustained() -> dict[str, Column]:
    def of(write: Callable[[float, Sample], object]) -> Column:
        def cell(measured: CaseResult) -> object:
            tflops = measured.given.flop / measured.sustained.ms / 1e9
            return write(tflops, measured.sustained.sample)

        return Column(cell, IN_TURN)

    return {
        "sustained_tflops": of(lambda tflops, _: f"{tflops:.1f}"),
        "sustained_sm_clock_mhz": of(lambda _, sample: sample.sm_clock_mhz),
        "sustained_power_w": of(lambda _, sample: sample.power_w),
        "joules_per_tflop": of(
            lambda tflops, sample: f"{sample.power_w / tflops:.3f}" if sample.power_w else ""
        ),
    }


@cache
def _matmul_tflops(dtype: DType) -> float:
    return measure_ceilings(dtype).matmul_tflops


def _cublas(measured: CaseResult) -> float:
    """Returns the TFLOP/s of cuBLAS's product of 8192^3, measured once for each dtype."""
    return _matmul_tflops(measured.case.workload.problem.dtype)


COLUMNS: Mapping[str, Column] = {
    **_sizes(),
    "mask": _of_case(lambda case: case.workload.variant.name),
    "group": _of_case(lambda case: case.group),
    "case": _of_case(lambda case: case.name),
    "cache": _of_case(lambda case: case.cache),
    "operation": _of_case(lambda case: case.operation),
    "window": _of_case(lambda case: case.window),
    "tokens": _of_case(lambda case: sum(case.lengths)),
    "pass": _of_case(lambda case: _PASSES[case.operation]),
    "candidate": Column(lambda measured: measured.name),
    "kernel": Column(lambda measured: measured.name),
    **_times(IN_TURN, "in_turn_", 4),
    **_times(BACK_TO_BACK, "back_to_back_", 4),
    **_times(IN_GRAPH, "in_graph_", 5),
    **_times(IN_TURN, "", 5),
    **_sustained(),
    "cublas_tflops": Column(lambda measured: f"{_cublas(measured):.1f}", IN_TURN),
    "flop": Column(lambda measured: f"{measured.given.flop:.4g}"),
    "peak_mib": Column(lambda measured: f"{_peak_mib(measured.run):.0f}", IN_TURN),
    "error": Column(lambda measured: f"{measured.error:.2g}"),
    "config": Column(lambda measured: measured.name),
    "tolerance": Column(lambda measured: f"{measured.given.tolerance:.3e}"),
    "ok": Column(lambda measured: measured.is_right),
    "rmse": Column(lambda measured: f"{measured.error:.2e}"),
}
