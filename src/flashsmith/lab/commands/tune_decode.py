"""Tuning of decode: measured on this GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flashsmith.configs.registry import DECODE
from flashsmith.gpus import count_multiprocessors, get_gpu_architecture
from flashsmith.lab.commands.reporter import Reporter
from flashsmith.lab.commands.request import Request
from flashsmith.lab.commands.tune import gpu_to_tune, interruptible, refuse_to_discard_others
from flashsmith.lab.tuning.decode_lab import DecodeLab, shapes_for
from flashsmith.lab.tuning.decode_search import Found, tune_decode, workloads_of
from flashsmith.lab.tuning.search import REPEATS
from flashsmith.selection.decode_tables import TITLE, decode_table_path


@dataclass(frozen=True)
class TunedDecode:
    """A table, and what this run found for it."""

    path: Path
    found: Sequence[Found]


def measure(
    request: Request,
    out: Path | None,
    reporter: Reporter,
    *,
    repeats: int | None = None,
    fresh: bool = False,
) -> TunedDecode:
    """Searches on this GPU, and keeps the winners in the table at ``out``. Of the request dtypes
    and head dimensions count. Other args: as of ``lab.tune.measure``."""
    arch, stamp = gpu_to_tune("")
    gpu, capability = stamp["gpu"], get_gpu_architecture(arch).compute_capability
    out = out or decode_table_path(gpu)
    if fresh:
        refuse_to_discard_others(out, TITLE)
    workloads = workloads_of(request.dtypes, request.d_heads, capability)
    plan = {workload: DECODE.candidates(workload, arch) for workload in workloads}
    lab = DecodeLab(partial(shapes_for, multiprocessors=count_multiprocessors(gpu)))
    with interruptible(out, reporter):
        with reporter.progress() as progress:
            lab.build(plan, progress)
        with reporter.progress() as progress:
            found = tune_decode(plan, lab, out, stamp, progress, repeats or REPEATS, fresh)
    return TunedDecode(out, found)
