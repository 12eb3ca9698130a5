"""Why a shape gets the kernel it gets, in words."""

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
from flashsmith.selection.choice import Choice, FewQueriesChoice, Source
from flashsmith.selection.choose import choose, choose_for
from flashsmith.selection.entries import Entry, Measured
from flashsmith.selection.tables import Table

RULE = "rule"
_Serving = Serving[Any, Any]
_Entry = Entry[Any, Any]
_Row = Measured[Any]


@dataclass(frozen=True)
class Explanation:
    """A choice in words; what was measured only if it comes from a table."""

    shape: str
    gpu: str | None
    kernel: str
    source: str  # your table, shipped table, or rule
    reason: str
    ms: float | None = None
    tflops: float | None = None
    measured: str | None = None
    next_best: str | None = None
    rule: str | None = None
    portfolio: str | None = None
    passed_over: tuple[str, ...] = ()


def explain_all(
    operation: Operation[Any, Any], request: Request, gpu: str | None
) -> list[Explanation]:
    """Why each shape gets its kernel of an operation; on the GPU of this name, on this one, or on
    the emulator.

    Raises:
        ValueError: No GPU of this name is known, or it is too old for the kernels; or neither a
            GPU nor sizes are named, and there is no GPU here.
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
    """This machine's GPU, as torch names it; None where there is none, or no torch to ask."""
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
    """Why ``attention``, its backward or ``decode`` take which kernel for a workload on the GPU of
    this name (None: a CPU).

    capability: The GPU's; None: going by its name.
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
        source=RULE,
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
        reason=_reason(workload, choice.source, entry, row),
        ms=row.ms,
        tflops=row.tflops,
        measured=measured,
        next_best=_next_best(entry, row, served),
        rule=_rule(entry, row, served),
        portfolio=_portfolio(workload, choice.source.table),
    )


def _reason(workload: Any, source: Source[Any, Any], entry: _Entry, row: _Row) -> str:
    stamp, table = source.table.stamp, source.table
    measured, wanted = table.key_of(entry.workload), table.key_of(workload)
    text = (
        f"{source.title} {source.path} ({stamp.get('date')}, "
        f"flashsmith {stamp.get('flashsmith')}, driver {stamp.get('driver_version')}): "
    )
    bucket, fastest = measured.bucket.words, entry.ranked[0].config
    if row is entry.ranked[0]:
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
    """Returns what serves this kind of workload, whatever its sizes."""
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


def _rule(entry: _Entry, row: _Row, served: _Serving) -> str:
    rule = served.rule_config.for_dtype(entry.workload.dtype)
    if rule == row.config:
        return "would choose the same"
    measured = next((other for other in entry.ranked if other.config == rule), None)
    if measured is None:
        return f"would choose {rule}, which was slower or wrong before the last round"
    return f"would choose {_compared(measured, row)}"


def _compared(other: _Row, row: _Row) -> str:
    slower = 100 * (other.cost / row.cost - 1)
    return f"{other.config}: {other.described()}, {slower:.1f} % slower"
