"""Why a shape gets the kernel it gets, in words."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from flashsmith.configs import Workload
from flashsmith.configs.families import Serving, family_of, serving
from flashsmith.configs.family import Capability
from flashsmith.configs.sm80.forward import MIN_COMPUTE_CAPABILITY
from flashsmith.gpus import get_gpu_architecture
from flashsmith.lab.request import ON_A_GPU, Request
from flashsmith.problem import LENGTH_BUCKETS, Problem
from flashsmith.selection.choose import Source, choose
from flashsmith.selection.tables import Entry, Measured

RULE = "rule"


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
    passed_over: tuple[str, ...] = ()


def explain_all(request: Request, gpu: str | None) -> list[Explanation]:
    """Why each shape gets its kernel; on the GPU of this name, on this one, or on the emulator.

    Raises:
        ValueError: No GPU of this name is known, or it is too old for the kernels.
    """
    capability = None
    if gpu is not None:
        _check_supported(gpu)
    elif torch.cuda.is_available():
        gpu = torch.cuda.get_device_name()
        capability = torch.cuda.get_device_capability()
    return [explain(each, gpu, capability) for each in request.workloads(ON_A_GPU)]


def _check_supported(gpu: str) -> None:
    capability = get_gpu_architecture(gpu).compute_capability
    if capability < MIN_COMPUTE_CAPABILITY:
        have, need = (".".join(map(str, pair)) for pair in (capability, MIN_COMPUTE_CAPABILITY))
        raise ValueError(f"gpu {gpu!r} has compute capability {have}; the kernels need {need}")


def explain(
    workload: Workload, gpu: str | None, capability: Capability | None = None
) -> Explanation:
    """Why ``attention`` takes which kernel for a workload on the GPU of this name (None: a CPU).

    capability: The GPU's; None: going by its name.
    """
    choice = choose(workload, gpu, capability)
    words = Explanation(
        shape=str(workload),
        gpu=gpu,
        kernel=choice.config.short_form(),
        source=RULE,
        reason=choice.reason,
        passed_over=choice.passed_over,
    )
    if not (gpu and choice.source and choice.entry and choice.measured):
        return words
    entry, row, served = choice.entry, choice.measured, serving(workload, gpu, capability)
    at = entry.workload.problem
    measured = (
        f"{row.described()}; in turn 20th to 80th percentile {row.ms_p20} to {row.ms_p80} ms and "
        f"{row.tflops} TFLOP/s, at batch {at.batch}, heads {at.heads}, length {at.seq_len_k}"
    )
    return replace(
        words,
        source=choice.source.title,
        reason=_reason(workload.problem, choice.source, entry, row),
        ms=row.ms,
        tflops=row.tflops,
        measured=measured,
        next_best=_next_best(entry, row, served),
        rule=_rule(entry, row, served),
    )


def _reason(problem: Problem, source: Source, entry: Entry, row: Measured) -> str:
    stamp, measured = source.table.stamp, entry.workload.problem
    text = (
        f"{source.title} {source.path} ({stamp.get('date')}, "
        f"flashsmith {stamp.get('flashsmith')}, driver {stamp.get('driver_version')}): "
    )
    if row is entry.ranked[0]:
        text += f"the fastest of {entry.tried}, {_lengths(measured.bucket)}"
    else:
        fastest = entry.ranked[0].config
        text += (
            f"the fastest that serves here; {fastest}, the fastest of {entry.tried} for this "
            f"bucket, is of the {family_of(fastest).name} family"
        )
    if measured.dtype != problem.dtype:
        text += f"; measured for {measured.dtype}, {problem.dtype} takes the same tiles"
    return text


def _lengths(bucket: int) -> str:
    """Which lengths share the entry."""
    i = LENGTH_BUCKETS.index(bucket)
    if i == 0:
        return f"for lengths up to {bucket}"
    if i == len(LENGTH_BUCKETS) - 1:
        return f"for lengths above {LENGTH_BUCKETS[i - 1]}"
    return f"for lengths {LENGTH_BUCKETS[i - 1] + 1} to {bucket}"


def _next_best(entry: Entry, row: Measured, served: Serving) -> str | None:
    after = entry.ranked[entry.ranked.index(row) + 1 :]
    dtype = served.workload.problem.dtype
    fitting = next((o for o in after if not served.why_not(o.config.for_dtype(dtype))), None)
    return None if fitting is None else _compared(fitting, row)


def _rule(entry: Entry, row: Measured, served: Serving) -> str:
    rule = served.rule_config.for_dtype(entry.workload.problem.dtype)
    if rule == row.config:
        return "would choose the same"
    measured = next((other for other in entry.ranked if other.config == rule), None)
    if measured is None:
        return f"would choose {rule}, which was slower or wrong before the last round"
    return f"would choose {_compared(measured, row)}"


def _compared(other: Measured, row: Measured) -> str:
    slower = 100 * (other.cost / row.cost - 1)
    return f"{other.config}: {other.described()}, {slower:.1f} % slower"
