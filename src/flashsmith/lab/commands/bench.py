"""Runs a benchmark: plans it, builds the kernels, sweeps, and writes the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flashsmith.configs import (
    FULL,
    ForwardKernelConfig,
    KernelId,
    Workload,
    is_kernel_name,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.errors import BuildError, DeviceError
from flashsmith.jit import Progress
from flashsmith.lab.bench import ceilings, stamp, timer
from flashsmith.lab.bench.candidates import Candidate
from flashsmith.lab.bench.monitor import GpuMonitor
from flashsmith.lab.bench.peers import PEERS, Peer, find_peers
from flashsmith.lab.bench.results import (
    BACK_TO_BACK,
    KERNEL,
    OK,
    REGIMES,
    CountRow,
    ResultFile,
    Row,
    TimeRow,
)
from flashsmith.lab.bench.session import ENVIRONMENT, Session
from flashsmith.lab.bench.sweep import MeasureTimes, Timer, measure_counts, sweep
from flashsmith.lab.commands import bench_files
from flashsmith.lab.commands.bench_files import COUNTS_CSV, times_csv
from flashsmith.lab.commands.device import choose_device
from flashsmith.lab.commands.kernel_words import named_forward_kernel, select_instances
from flashsmith.lab.commands.reporter import Reporter
from flashsmith.lab.commands.request import ON_A_GPU, Grid, Request
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of
from flashsmith.selection.choose import choose_for
from flashsmith.selection.select import gpu_of

Plan = dict[Workload, list[Candidate]]

DEFAULT = "default"  # the kernel word for the kernel that attention() chooses
_FOR_COUNTS = Grid((128, 256), tokens=256, hidden=128)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: workloads, candidates and how they are measured.

    Attributes:
        peers: Names of peers; None: all that are available.
        repeats: Runs of each candidate when candidates are timed in turn.
        milliseconds: Duration of each measurement when candidates are timed back to back.
        counts: Whether the emulator's counts are taken in place of times.
        arguments: The options as the user wrote them. A folder measured with other options is
            refused, so that results do not mix.
    """

    request: Request
    peers: Sequence[str] | None
    regimes: Sequence[str]
    repeats: int
    milliseconds: float
    counts: bool
    arguments: Mapping[str, Any]

    def workloads(self) -> list[Workload]:
        return self.request.workloads(_FOR_COUNTS if self.counts else ON_A_GPU)

    def timer(self, regime: str) -> Timer:
        if regime == BACK_TO_BACK:
            return partial(timer.time_back_to_back, milliseconds=self.milliseconds)
        return partial(timer.time_interleaved, repeats=self.repeats)

    def chosen_peers(self, note: Callable[[str], None]) -> list[Peer]:
        if self.counts:
            return []
        if self.peers is not None:
            return find_peers(self.peers)
        for peer in PEERS.values():
            if why := peer.why_missing():
                note(f"without {peer.name}: {why}")
        return [peer for peer in PEERS.values() if peer.is_available]


@dataclass(frozen=True)
class Measured:
    """The rows of a benchmark, and the files that they were written to."""

    session: Session
    rows: Sequence[Row]
    files: Sequence[Path]

    @property
    def bad_rows(self) -> list[Row]:
        return [row for row in self.rows if row.status != OK]

    @property
    def has_bad_kernel(self) -> bool:
        return any(row.kind == KERNEL for row in self.bad_rows)


def run(asked: Benchmark, out: Path, reporter: Reporter, *, force: bool) -> Measured:
    """Measures what the folder ``out`` lacks; with ``force``, discards what it has.

    Raises:
        GpuLostError: A candidate broke this process's GPU context; a new process resumes.
    """
    workloads = asked.workloads()
    _check_words(asked, workloads)
    device = _choose_device(asked.counts)
    peers = asked.chosen_peers(reporter.note)
    plan = make_plan(workloads, asked.request.words, peers, device)
    builds = {peer.name: peer.build() for peer in peers if peer.is_available}
    session = Session.open(
        out,
        stamp.environment_stamp(device) | {"peers": builds},
        {**asked.arguments, "peers": [peer.name for peer in peers]},
        results=[COUNTS_CSV] if asked.counts else [times_csv(regime) for regime in REGIMES],
        stamp="counts.json" if asked.counts else ENVIRONMENT,
        force=force,
    )
    if force and not asked.counts:
        bench_files.remove_reports(out)
    plots = bench_files.find_plots(reporter.note)
    _load(plan, device, reporter)
    rows: Sequence[Row]
    if asked.counts:
        rows = _count(plan, out, reporter)
        return Measured(session, rows, bench_files.write_counts(rows, session, out, plots))
    _measure_ceilings(session, plan)
    timed = [_time(asked, regime, plan, session, device, reporter) for regime in asked.regimes]
    files = [session.path]
    for rows in timed:
        files += bench_files.write_times(rows, session, out, plots)
    return Measured(session, [row for rows in timed for row in rows], files)


def _count(plan: Plan, out: Path, reporter: Reporter) -> list[CountRow]:
    counts = ResultFile(CountRow, out / COUNTS_CSV)
    _sweep(out, reporter, lambda progress: sweep(plan, measure_counts, counts, progress))
    return counts.rows


def _time(
    asked: Benchmark, regime: str, plan: Plan, session: Session, device: str, reporter: Reporter
) -> list[TimeRow]:
    out = session.path.parent
    times = ResultFile(TimeRow, out / times_csv(regime), regime=regime)
    with GpuMonitor() as monitor:
        measure = MeasureTimes(session.ceilings, regime, asked.timer(regime), monitor.since, device)
        _sweep(out, reporter, lambda progress: sweep(plan, measure, times, progress))
    return times.rows


def _check_words(asked: Benchmark, workloads: Iterable[Workload]) -> None:
    """Raises ValueError for an unknown peer or kernel, before the GPU is looked for."""
    if asked.counts and asked.peers:
        raise ValueError("--emulator-counts counts kernels only; leave out --peers")
    find_peers(asked.peers or [])
    make_plan(workloads, [word for word in asked.request.words if word != DEFAULT], [], "cpu")


def make_plan(
    workloads: Iterable[Workload], words: Sequence[str], peers: Sequence[Peer], device: str
) -> Plan:
    """Returns the candidates of each workload; workloads that no word has a kernel for are absent.

    Raises:
        ValueError: A word matches no kernel for any workload.
    """
    plan: Plan = {}
    fitting = set()
    for workload in workloads:
        configs: dict[ForwardKernelConfig, None] = {}
        for word in words:
            if found := _configs(word, workload, device):
                fitting.add(word)
                configs |= dict.fromkeys(found)
        if configs:
            plan[workload] = [*peers, *configs]
    if unused := [word for word in words if word not in fitting]:
        raise ValueError(
            f"kernel {unused[0]} fits no shape of this grid; choose --dtype, --d-head and --mask "
            "that it is for"
        )
    return plan


def _configs(word: str, workload: Workload, device: str) -> list[ForwardKernelConfig]:
    problem = workload.problem
    if word == DEFAULT:
        return [choose_for(FORWARD, workload, *gpu_of(torch.device(device))).config]
    if not is_kernel_name(word):
        found = select_instances([word], [workload.variant], problem.dtype, problem.d_head)
        return [instance.config for instance in found]
    try:
        named = named_forward_kernel(word)
    except ValueError:  # a short form without d_head, or none at all
        named = named_forward_kernel(word, problem.d_head)
    fits = named.config.serves(problem) and named.variant in (FULL, workload.variant)
    return [named.config] if fits else []


def _choose_device(counts: bool) -> str:
    if counts:
        return "cpu"
    device, why = choose_device(None)
    if device != "cuda":
        raise DeviceError(
            f"nothing is benchmarked: {why}. --emulator-counts writes what the emulator counts "
            "(instructions, bank conflicts, memory sectors) in place of times"
        )
    return device


def _load(plan: Plan, device: str, reporter: Reporter) -> None:
    """Builds all kernels at once; if that fails, each alone, so that only broken ones are missing.

    A broken kernel's error is raised again, and recorded, when the sweep checks it.
    """
    instances = [
        KernelId(candidate, workload.variant)
        for workload, candidates in plan.items()
        for candidate in candidates
        if not isinstance(candidate, Peer)
    ]
    instances = list(dict.fromkeys(instances))
    target = target_of(torch.device(device))
    with reporter.progress() as progress:
        try:
            load_kernels(instances, target, progress)
        except (BuildError, ValueError) as error:
            reporter.note(f"{error}\nbuilding each kernel alone")
            for instance in instances:
                with suppress(BuildError, ValueError):
                    load_kernels([instance], target, progress)


def _measure_ceilings(session: Session, plan: Plan) -> None:
    for dtype in dict.fromkeys(workload.problem.dtype for workload in plan):
        if str(dtype) not in session.ceilings:
            session.add_ceilings(ceilings.measure_ceilings(dtype))


def _sweep(out: Path, reporter: Reporter, run_sweep: Callable[[Progress], None]) -> None:
    try:
        with reporter.progress() as progress:
            run_sweep(progress)
    except KeyboardInterrupt:
        reporter.note(
            f"interrupted; {out} has what is finished, and the same command goes on from there"
        )
        raise
