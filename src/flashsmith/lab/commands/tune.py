"""Tunes: measures kernels on this GPU, or ranks them by what the emulator counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flashsmith.configs import (
    ForwardKernelConfig,
    Workload,
    is_kernel_name,
)
from flashsmith.configs.operation import Operation, capability_of
from flashsmith.configs.registry import FORWARD
from flashsmith.errors import DeviceError, GpuLostError, TuningError
from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.operations.forward_kernels import FORWARD_KERNELS
from flashsmith.lab.bench.resources import kernels_of
from flashsmith.lab.bench.results import OK, CountRow
from flashsmith.lab.bench.stamp import environment_stamp
from flashsmith.lab.bench.sweep import measure_counts
from flashsmith.lab.commands.device import choose_device
from flashsmith.lab.commands.grids import tuning_workloads, workloads_to_tune
from flashsmith.lab.commands.kernel_words import named_forward_kernel, select_instances
from flashsmith.lab.commands.reporter import Reporter
from flashsmith.lab.commands.request import Grid, Request
from flashsmith.lab.tuning.benches import benches_of
from flashsmith.lab.tuning.lab import KernelLab
from flashsmith.lab.tuning.portfolio import Portfolio, portfolios_of
from flashsmith.lab.tuning.ranking import counting_arch, memory_work
from flashsmith.lab.tuning.search import REPEATS, Plan, make_plan, plan_again
from flashsmith.lab.tuning.session import TuningSession, journal_path, tuning_session
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of
from flashsmith.selection.table_text import title_of
from flashsmith.selection.tables import Table, shipped_table_path, user_table_path

_FOR_COUNTS = Grid((256,), tokens=256, hidden=128)


@dataclass(frozen=True)
class Tuned:
    """A table, and the entries that this run added to it."""

    path: Path
    found: Table[Any, Any]
    portfolios: Sequence[Portfolio]  # of the whole table


def named_candidates(
    words: Sequence[str], workloads: Iterable[Workload]
) -> list[ForwardKernelConfig] | None:
    """Returns the configurations that kernel words choose for the workloads' dtypes and d_heads;
    None if there are no words, which stands for the families' tuning spaces."""
    if not words:
        return None
    names = [word for word in words if is_kernel_name(word)]
    keys = [word for word in words if word not in names]
    named = [named_forward_kernel(name).config for name in names]
    problems = [workload.problem for workload in workloads]
    kinds = dict.fromkeys((problem.dtype, problem.d_head) for problem in problems)
    chosen = [
        instance.config
        for dtype, d_head in kinds
        for instance in select_instances(keys, dtype=dtype, d_head=d_head)
    ]
    if unused := [cfg for cfg in named if (cfg.dtype, cfg.d_head) not in kinds]:
        raise ValueError(f"kernel {unused[0]} is for no shape of --dtype and --d-head")
    return list(dict.fromkeys([*named, *chosen]))


def measure(
    operation: Operation[Any, Any],
    request: Request,
    out: Path | None,
    reporter: Reporter,
    *,
    repeats: int | None = None,
    fresh: bool = False,
) -> Tuned:
    """Searches on this GPU, and writes the fastest configurations into the table at ``out``.

    Args:
        request: Its words choose kernels of the forward alone.
        out: The table's file; None: the user's table for this GPU.
        repeats: Timed runs of each finalist; None: the tuner's default.
        fresh: Discard an existing table, and the journal of an interrupted run.
    """
    if request.words:  # a word that is wrong on any architecture is refused before the GPU's check
        named_candidates(request.words, tuning_workloads(request, None))
    arch, stamp = gpu_to_tune(
        "; --explain shows what is chosen without tuning, --emulator-counts ranks by what the "
        "emulator counts"
    )
    gpu = stamp["gpu"]
    workloads = workloads_to_tune(operation, request, gpu, capability_of(arch))
    named = named_candidates(request.words, workloads) if request.words else None
    plan = make_plan(operation, workloads, arch, gpu, named)
    out = out or user_table_path(gpu, operation)
    if fresh:
        refuse_to_discard_others(out, title_of(operation))
    with tuning_session(operation, out, stamp, fresh) as session:
        return _run(session, plan, reporter, repeats)


def measure_again(
    operation: Operation[Any, Any],
    out: Path | None,
    reporter: Reporter,
    *,
    repeats: int | None = None,
) -> Tuned:
    """Measures the kernels of the table at ``out``, or of the shipped one if there is no such file,
    on this GPU, and writes a table of them at ``out``. The old one may be of other kernel sources.

    Args: See ``measure``.

    Raises:
        TuningError: There is no table, or it is of another operation or GPU.
    """
    arch, stamp = gpu_to_tune("; a table is measured again where it was made")
    out = out or user_table_path(stamp["gpu"], operation)
    path = out if out.exists() else shipped_table_path(stamp["gpu"], operation)
    if not path.exists():
        raise TuningError(f"there is no table to measure again: neither {out} nor {path}")
    table = Table.read(path)
    if table.operation is not operation or table.stamp.get("gpu") != stamp["gpu"]:
        raise TuningError(
            f"{path} is a table of {table.operation.name} kernels of {table.stamp.get('gpu')}; "
            f"measured again are {operation.name} kernels of {stamp['gpu']}"
        )
    with tuning_session(operation, out, stamp, again=True) as session:
        return _run(session, plan_again(table, arch), reporter, repeats)


def _run(
    session: TuningSession[Any, Any], plan: Plan[Any, Any], reporter: Reporter, repeats: int | None
) -> Tuned:
    if len(session.journal):
        reporter.note(f"going on with {session.journal.path}")
    lab = KernelLab(benches_of(session.operation), "cuda")
    with interruptible(session.out, reporter):
        with reporter.progress() as progress:
            lab.build(plan, progress)
        with reporter.progress() as progress:
            found = session.run(plan, lab, progress, repeats or REPEATS)
    return Tuned(session.out, found, portfolios_of(Table.read(session.out)))


def gpu_to_tune(otherwise: str) -> tuple[str, dict[str, str]]:
    """Returns the architecture of this GPU, and the stamp of measurements made here.

    Raises DeviceError: There is no GPU; ``otherwise`` says what can be done instead.
    """
    device, why = choose_device(None)
    if device != "cuda":
        raise DeviceError(f"nothing is tuned: {why}{otherwise}")
    (arch,) = target_of(torch.device(device)).archs
    return arch, environment_stamp()


@contextmanager
def interruptible(out: Path, reporter: Reporter) -> Iterator[None]:
    """Notes how to resume a run for the table at ``out`` if the run ends early."""
    try:
        yield
    except (KeyboardInterrupt, GpuLostError):
        reporter.note(
            f"{journal_path(out)} has what is measured; the same command goes on from there"
        )
        raise


def refuse_to_discard_others(out: Path, title: str) -> None:
    """Raises ValueError if the file at ``out`` exists and does not begin with ``title``."""
    if out.exists() and not out.read_bytes().startswith(f"{title}, ".encode()):
        raise ValueError(
            f"--force discards tables of `flashsmith tune` only, and {out} is not one; remove it, "
            "or choose another --out"
        )


def count(request: Request, reporter: Reporter) -> list[CountRow]:
    """Counts each candidate on the emulator; a workload's rows are sorted by memory work, least
    first."""
    workloads = request.workloads(_FOR_COUNTS)
    configs = named_candidates(request.words, workloads)
    plan = make_plan(FORWARD, workloads, counting_arch(configs or []), configs=configs)
    cases = [Case(FORWARD_KERNELS, each, tuple(map(str, plan[each]))) for each in plan]
    with reporter.progress() as progress:
        load_kernels(kernels_of(cases), target_of(torch.device("cpu")), progress)
    rows: list[CountRow] = []
    with reporter.progress() as progress:
        for done, case in enumerate(cases):
            progress(done, len(cases), str(case.workload))
            counted = measure_counts(case)
            rows += sorted(counted, key=lambda row: (row.status != OK, *memory_work(row.counts)))
    return rows
