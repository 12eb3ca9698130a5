"""Explains in words why a shape gets its kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from flashsmith.configs.base import Capability
from flashsmith.configs.operation import Operation, Serving, capability_of
from flashsmith.configs.registry import FORWARD, family_of
from flashsmith.configs.sm80.forward import MIN_COMPUTE_CAPABILITY
from flashsmith.gpus import get_gpu_architecture
from flashsmith.lab.commands.grids import workloads_to_tune
from flashsmith.lab.commands.request import Request
from flashsmith.lab.tuning.portfolio import portfolios_of
from flashsmith.selection.choice import Choice, FewQueriesChoice
from flashsmith.selection.choose import choose, choose_for
from flashsmith.selection.entries import Entry, Measured
from flashsmith.selection.tables import Table

HEURISTIC = "heuristic"
_Serving = Serving[Any, Any]
_Entry = Entry[Any, Any]
_Row = Measured[Any]


@dataclass(frozen=True)
class Explanation:
    """A choice in words; only a choice from a table has the fields ``ms`` to ``portfolio``."""

    shape: str
    gpu: str | None
    kernel: str
    source: str  # your table, shipped table, or heuristic
    reason: str
    ms: float | None = None
    tflops: float | None = None
    measured: str | None = None
    next_best: str | None = None
    heuristic: str | None = None
    portfolio: str | None = None
    passed_over: tuple[str, ...] = ()


def explain_all(
    operation: Operation[Any, Any], request: Request, gpu: str | None
) -> list[Explanation]:
    """Explains the kernel of each shape, on the GPU of this name; None: on this machine's GPU, or
    on the emulator if there is none.

    Raises:
        ValueError: The GPU is unknown or too old for the kernels; or neither a GPU nor sizes are
            named, and this machine has no GPU.
    """
    capability = None
    if gpu is not None:
        _check_supported(gpu)
    elif here := _gpu_here():
        gpu, capability = here
    elif not request.names_sizes and not request.grids:
        raise ValueError(
            "--explain without a shape explains the table of a GPU, and there is no GPU here: name "
            'one, like --gpu "NVIDIA H200", or a shape, like --seq-len 4096'
        )
    known = None if gpu is None else capability_of(gpu, capability)
    workloads = workloads_to_tune(operation, request, gpu, known)
    return [explain(each, gpu, capability, operation) for each in workloads]


def _gpu_here() -> tuple[str, Capability] | None:
    """Returns this machine's GPU, as torch names it; None without a GPU or without torch."""
    if find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_name(), torch.cuda.get_device_capability()


def _check_supported(gpu: str) -> None:
    capability = get_gpu_architecture(gpu).compute_capability
    if capability < MIN_COMPUTE_CAPABILITY:
        have, need = (".".join(map(str, pair)) for pair in (capability, MIN_COMPUTE_CAPABILITY))
        raise ValueError(f"gpu {gpu!r} has compute capability {have}; the kernels need {need}")


def explain(
    workload: Any,
    gpu: str | None,
    capability: Capability | None = None,
    operation: Operation[Any, Any] = FORWARD,
) -> Explanation:
    """Explains the kernel that ``attention``, its backward or ``decode`` takes for a workload on
    the GPU of this name (None: a CPU).

    capability: The GPU's compute capability; None: derived from its name.
    """
    choice: Choice[Any, Any] | FewQueriesChoice
    if operation is FORWARD:
        choice = choose(workload, gpu, capability)
    else:
        choice = choose_for(operation, workload, gpu, capability)
    words = Explanation(
        shape=str(workload),
        gpu=gpu,
        kernel=choice.config.short_form(),
        source=HEURISTIC,
        reason=choice.reason,
        passed_over=choice.passed_over,
    )
    if isinstance(choice, FewQueriesChoice):
        return words
    if not (gpu and choice.source and choice.entry and choice.measured):
        return words
    entry, row, served = choice.entry, choice.measured, operation.serving(workload, gpu, capability)
    speed = "" if row.tflops is None else f" and {row.tflops} TFLOP/s"
    measured = (
        f"{row.described()}; in turn 20th to 80th percentile {row.ms_p20} to {row.ms_p80} ms"
        f"{speed}, {entry.workload.measured_at}"
    )
    return replace(
        words,
        source=choice.source.title,
        reason=_reason(workload, choice, entry, row),
        ms=row.ms,
        tflops=row.tflops,
        measured=measured,
        next_best=_next_best(entry, row, served),
        heuristic=_heuristic(entry, row, served),
        portfolio=_portfolio(workload, choice.source.table),
    )


def _reason(workload: Any, choice: Choice[Any, Any], entry: _Entry, row: _Row) -> str:
    assert choice.source is not None
    source, table = choice.source, choice.source.table
    stamp = table.stamp
    measured, wanted = table.key_of(entry.workload), table.key_of(workload)
    text = (
        f"{source.title} {source.path} ({stamp.get('date')}, "
        f"flashsmith {stamp.get('flashsmith')}, driver {stamp.get('driver_version')}): "
    )
    bucket, fastest = measured.bucket.words, entry.ranked[0].config
    if choice.is_predicted:
        same = choice.config.for_dtype(measured.dtype) == row.config
        kernel = "it" if same else f"{row.config}, the same tiles in another order,"
        text += (
            f"predicted to be the fastest of the portfolio here, for {bucket}; at "
            f"{entry.workload.problem.sizes}, which divides into tiles in another way, {kernel} "
            f"was {100 * entry.loss(row):.1f} % slower than the fastest, {fastest}"
        )
    elif row is entry.ranked[0]:
        text += f"the fastest of {entry.tried}, for {bucket}"
    elif not entry.ranked[0].in_portfolio:
        text += (
            f"the fastest of the portfolio, for {bucket}; {100 * entry.loss(row):.1f} % slower "
            f"than {fastest}, the fastest of {entry.tried}, which is not in it"
        )
    else:
        text += (
            f"the fastest that serves here; {fastest}, the fastest of {entry.tried} for this "
            f"bucket, is of the {family_of(fastest).name} family"
        )
    if measured.bucket != wanted.bucket:
        text += f"; the nearest that was measured to {wanted.bucket.words}"
    if measured.dtype != wanted.dtype:
        text += f"; measured for {measured.dtype}, {wanted.dtype} takes the same tiles"
    return text


def _portfolio(workload: Any, table: Table[Any, Any]) -> str:
    """Describes the portfolio that serves all sizes of this kind of workload, and its loss."""
    key = table.key_of(workload)
    portfolios = portfolios_of(table)
    (found,) = (each for each in portfolios if (each.d_head, each.variant) == key.kind)
    return (
        f"{len(found.tiles)} kernels serve every shape of d {found.d_head} {found.variant}, and "
        f"lose at most {100 * found.worst_loss:.1f} %"
    )


def _next_best(entry: _Entry, row: _Row, served: _Serving) -> str | None:
    after = entry.ranked[entry.ranked.index(row) + 1 :]
    dtype = served.workload.dtype
    fitting = next((o for o in after if not served.why_not(o.config.for_dtype(dtype))), None)
    return None if fitting is None else _compared(fitting, row)


def _heuristic(entry: _Entry, row: _Row, served: _Serving) -> str:
    heuristic = served.heuristic_config.for_dtype(entry.workload.dtype)
    if heuristic == row.config:
        return "would choose the same"
    measured = next((other for other in entry.ranked if other.config == heuristic), None)
    if measured is None:
        return f"would choose {heuristic}, which was slower or wrong before the last round"
    return f"would choose {_compared(measured, row)}"


def _compared(other: _Row, row: _Row) -> str:
    slower = 100 * (other.cost / row.cost - 1)
    return f"{other.config}: {other.described()}, {slower:.1f} % slower"
