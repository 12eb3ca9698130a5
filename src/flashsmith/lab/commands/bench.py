"""A benchmark: list cases, build, sweep, and write what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flashsmith.configs import (
    FULL,
    ForwardKernelConfig,
    Workload,
    is_kernel_name,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.errors import DeviceError
from flashsmith.jit import Progress
from flashsmith.lab.bench import ceilings, stamp
from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.monitor import GpuMonitor
from flashsmith.lab.bench.operations.forward_kernels import FORWARD_KERNELS
from flashsmith.lab.bench.peers import PEERS, Peer, find_peers
from flashsmith.lab.bench.resources import kernels_of
from flashsmith.lab.bench.results import (
    KERNEL,
    OK,
    REGIMES,
    CountRow,
    ResultFile,
    Row,
    TimeRow,
)
from flashsmith.lab.bench.runner import Runner
from flashsmith.lab.bench.session import ENVIRONMENT, Session
from flashsmith.lab.bench.sweep import measure_counts, measure_times, sweep
from flashsmith.lab.commands import bench_files
from flashsmith.lab.commands.bench_files import COUNTS_CSV, times_csv
from flashsmith.lab.commands.device import choose_device
from flashsmith.lab.commands.kernel_words import named_forward_kernel, select_instances
from flashsmith.lab.commands.reporter import Reporter
from flashsmith.lab.commands.request import ON_A_GPU, Grid, Request
from flashsmith.lab.tuning.lab import load_buildable
from flashsmith.runtime.device import target_of
from flashsmith.selection.choose import choose_for
from flashsmith.selection.select import gpu_of

DEFAULT = "default"  # the kernel word for what attention() takes
_FOR_COUNTS = Grid((128, 256), tokens=256, hidden=128)


@dataclass(frozen=True)
class Benchmark:
    """The measurements that are asked for.

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
    """The rows that a benchmark found, and the files that have them."""

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
    workloads = asked.request.workloads(_FOR_COUNTS if asked.counts else ON_A_GPU)
    _check_words(asked, workloads)
    device = _choose_device(asked.counts)
    peers = asked.chosen_peers(reporter.note)
    names = [peer.name for peer in peers]
    cases = make_cases(workloads, asked.request.words, names, device)
    builds = {peer.name: peer.build() for peer in peers if peer.is_available}
    session = Session.open(
        out,
        stamp.environment_stamp(device) | {"peers": builds},
        {**asked.arguments, "peers": names},
        results=[COUNTS_CSV] if asked.counts else [times_csv(regime) for regime in REGIMES],
        stamp="counts.json" if asked.counts else ENVIRONMENT,
        force=force,
    )
    if force and not asked.counts:
        bench_files.remove_reports(out)
    plots = bench_files.find_plots(reporter.note)
    _load(cases, device, reporter)
    rows: Sequence[Row]
    if asked.counts:
        rows = _count(cases, out, reporter)
        return Measured(session, rows, bench_files.write_counts(rows, session, out, plots))
    _measure_ceilings(session, cases)
    timed = [_time(asked, regime, cases, session, device, reporter) for regime in asked.regimes]
    files = [session.path]
    for rows in timed:
        files += bench_files.write_times(rows, session, out, plots)
    return Measured(session, [row for rows in timed for row in rows], files)


def _count(cases: Sequence[Case], out: Path, reporter: Reporter) -> list[CountRow]:
    counts = ResultFile(CountRow, out / COUNTS_CSV)
    _sweep(out, reporter, lambda progress: sweep(cases, measure_counts, counts, progress))
    return counts.rows


def _time(
    asked: Benchmark,
    regime: str,
    cases: Sequence[Case],
    session: Session,
    device: str,
    reporter: Reporter,
) -> list[TimeRow]:
    out = session.path.parent
    times = ResultFile(TimeRow, out / times_csv(regime), regime=regime)
    with GpuMonitor() as monitor:
        runner = Runner(device, asked.repeats, asked.milliseconds, monitor.since)
        measure = partial(measure_times, runner, regime=regime, ceilings=session.ceilings)
        _sweep(out, reporter, lambda progress: sweep(cases, measure, times, progress))
    return times.rows


def _check_words(asked: Benchmark, workloads: Iterable[Workload]) -> None:
    """Raises ValueError for an unknown peer or kernel, before the GPU is looked for."""
    if asked.counts and asked.peers:
        raise ValueError("--emulator-counts counts kernels only; leave out --peers")
    find_peers(asked.peers or [])
    make_cases(workloads, [word for word in asked.request.words if word != DEFAULT], [], "cpu")


def make_cases(
    workloads: Iterable[Workload], words: Sequence[str], peers: Sequence[str], device: str
) -> list[Case]:
    """Returns a case for each workload; workloads that no kernel is chosen for are left out.

    Raises:
        ValueError: A word matches no kernel for any workload.
    """
    cases = []
    fitting = set()
    for workload in workloads:
        configs: dict[ForwardKernelConfig, None] = {}
        for word in words:
            if found := _configs(word, workload, device):
                fitting.add(word)
                configs |= dict.fromkeys(found)
        if configs:
            cases.append(Case(FORWARD_KERNELS, workload, (*peers, *map(str, configs))))
    if unused := [word for word in words if word not in fitting]:
        raise ValueError(
            f"kernel {unused[0]} fits no shape of this grid; choose --dtype, --d-head and --mask "
            "that it is for"
        )
    return cases


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


def _load(cases: Sequence[Case], device: str, reporter: Reporter) -> None:
    """Builds all kernels at once, without those that cannot be: their checks meet the error."""
    with reporter.progress() as progress:
        load_buildable(kernels_of(cases), target_of(torch.device(device)), progress)


def _measure_ceilings(session: Session, cases: Sequence[Case]) -> None:
    for dtype in dict.fromkeys(case.workload.problem.dtype for case in cases):
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
