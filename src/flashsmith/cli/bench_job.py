"""What `flashsmith bench` does: plan, build, sweep, and write what came out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from flashsmith import bench
from flashsmith.bench.candidates import Candidate
from flashsmith.bench.grid import Problem, make_grid
from flashsmith.bench.monitor import GpuMonitor
from flashsmith.bench.peers import PEERS, Peer, find_peers
from flashsmith.bench.results import (
    BACK_TO_BACK,
    REGIMES,
    CountRow,
    ResultFile,
    Row,
    TimeRow,
)
from flashsmith.bench.session import ENVIRONMENT, Session
from flashsmith.bench.sweep import MeasureTimes, Timer, measure_counts, sweep
from flashsmith.cli import bench_output
from flashsmith.cli.bench_output import COUNTS_CSV, times_csv
from flashsmith.cli.job import choose_device, load_kernels
from flashsmith.cli.selection import (
    parse_d_heads,
    parse_numbers,
    select_instances,
    split_words,
)
from flashsmith.cli.tables import build_progress, note
from flashsmith.configs import (
    FULL,
    DType,
    ForwardKernelConfig,
    ForwardKernelInstance,
    is_kernel_name,
    parse_kernel_name_into_instance,
)
from flashsmith.errors import BuildError, DeviceError, GpuLostError
from flashsmith.selection import select_config

Plan = dict[Problem, list[Candidate]]

_DEFAULT = "default"  # the kernel word for what attention() takes
_BOTH = "both"  # regimes


@dataclass(frozen=True)
class Request:
    """The options of the command, as written."""

    kernels: list[str]
    peers: str
    dtypes: str
    d_heads: str
    masks: str
    seq_lens: str | None
    tokens: int | None
    hidden: int | None
    regime: str
    repeats: int
    milliseconds: float
    counts: bool
    batch: int | None = None
    heads: int | None = None

    def grid(self) -> list[Problem]:
        """All shapes. Raises ValueError that names the option that is wrong."""
        seq_lens, tokens, hidden = ("128,256", 256, 128) if self.counts else _GPU_GRID
        return make_grid(
            [DType.from_string(name) for name in split_words(self.dtypes)],
            [d_head for d_head in parse_d_heads(self.d_heads) if d_head],
            split_words(self.masks),
            parse_numbers("--seq-len", self.seq_lens or seq_lens),
            tokens=self.tokens or tokens,
            hidden=self.hidden or hidden,
            batch=self.batch,
            heads=self.heads,
        )

    def chosen_regimes(self) -> list[str]:
        regimes = [*REGIMES] if self.regime == _BOTH else split_words(self.regime)
        if unknown := set(regimes) - {*REGIMES}:
            raise ValueError(
                f"--regime is {self.regime!r}; {unknown.pop()!r} is not known, choose "
                f"{', '.join(REGIMES)} or {_BOTH}"
            )
        return regimes

    def timer(self, regime: str) -> Timer:
        if regime == BACK_TO_BACK:
            return partial(bench.time_back_to_back, milliseconds=self.milliseconds)
        return partial(bench.time_interleaved, repeats=self.repeats)

    def chosen_peers(self) -> list[Peer]:
        if self.counts and self.peers not in ("available", "none"):
            raise ValueError("--emulator-counts counts kernels only; leave out --peers")
        if self.counts or self.peers == "none":
            return []
        if self.peers != "available":
            return find_peers(split_words(self.peers))
        for peer in PEERS.values():
            if why := peer.why_missing():
                note(f"without {peer.name}: {why}")
        return [peer for peer in PEERS.values() if peer.is_available]


_GPU_GRID = ("512,1024,2048,4096,8192,16384", 16384, 2048)


def run(request: Request, out: Path, *, force: bool, as_json: bool) -> None:
    problems = request.grid()
    _check_words(request, problems)
    regimes = request.chosen_regimes()
    device = _choose_device(request.counts)
    peers = request.chosen_peers()
    plan = make_plan(problems, request.kernels, peers, device)
    builds = {peer.name: peer.build() for peer in peers if peer.is_available}
    session = Session.open(
        out,
        bench.environment_stamp(device) | {"peers": builds},
        asdict(request) | {"peers": [peer.name for peer in peers]},
        results=[COUNTS_CSV] if request.counts else [times_csv(regime) for regime in REGIMES],
        stamp="counts.json" if request.counts else ENVIRONMENT,
        force=force,
    )
    if force and not request.counts:
        bench_output.remove_reports(out)
    plots = bench_output.find_plots()
    _load(plan, device)
    rows: Sequence[Row]
    if request.counts:
        rows = _count(plan, out)
        files = bench_output.write_counts(rows, session, out, plots)
    else:
        _measure_ceilings(session, plan)
        timed = {regime: _time(request, regime, plan, session, device) for regime in regimes}
        files = [session.path]
        for rows in timed.values():
            files += bench_output.write_times(rows, session, out, plots)
        rows = [row for rows in timed.values() for row in rows]
    bench_output.report(session, rows, files, as_json)


def _count(plan: Plan, out: Path) -> list[CountRow]:
    counts = ResultFile(CountRow, out / COUNTS_CSV)
    _sweep(out, lambda progress: sweep(plan, measure_counts, counts, progress))
    return counts.rows


def _time(
    request: Request, regime: str, plan: Plan, session: Session, device: str
) -> list[TimeRow]:
    out = session.path.parent
    times = ResultFile(TimeRow, out / times_csv(regime), regime=regime)
    with GpuMonitor() as monitor:
        measure = MeasureTimes(
            session.ceilings, regime, request.timer(regime), monitor.since, device
        )
        _sweep(out, lambda progress: sweep(plan, measure, times, progress))
    return times.rows


def _check_words(request: Request, problems: Iterable[Problem]) -> None:
    """Raises ValueError for a peer or kernel that is none, before a GPU is asked for."""
    if not request.counts and request.peers not in ("available", "none"):
        find_peers(split_words(request.peers))
    make_plan(problems, [word for word in request.kernels if word != _DEFAULT], [], "cpu")


def make_plan(
    problems: Iterable[Problem], words: Sequence[str], peers: Sequence[Peer], device: str
) -> Plan:
    """The candidates of each problem; problems that no kernel is chosen for are left out.

    Raises:
        ValueError: A word chooses no kernel at any shape.
    """
    plan: Plan = {}
    fitting = set()
    for problem in problems:
        configs: dict[ForwardKernelConfig, None] = {}
        for word in words:
            if found := _configs(word, problem, device):
                fitting.add(word)
                configs |= dict.fromkeys(found)
        if configs:
            plan[problem] = [*peers, *configs]
    if unused := [word for word in words if word not in fitting]:
        raise ValueError(
            f"kernel {unused[0]} fits no shape of this grid; choose --dtype, --d-head and --mask "
            "that it is for"
        )
    return plan


def _configs(word: str, problem: Problem, device: str) -> list[ForwardKernelConfig]:
    if word == _DEFAULT:
        # Only its shape, dtype and device count.
        dtype = problem.dtype.to_torch_dtype()
        q = torch.empty(1, dtype=dtype, device=device).expand(problem.shape)
        return [select_config(q, problem.variant.causal)]
    if not is_kernel_name(word):
        found = select_instances([word], [problem.variant], problem.dtype, problem.d_head)
        return [instance.config for instance in found]
    try:
        named = parse_kernel_name_into_instance(word)
    except ValueError:  # a short form without d_head, or none at all
        named = parse_kernel_name_into_instance(word, problem.d_head)
    fits = (named.config.dtype, named.config.d_head) == (problem.dtype, problem.d_head)
    return [named.config] if fits and named.variant in (FULL, problem.variant) else []


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


def _load(plan: Plan, device: str) -> None:
    """Builds all kernels at once; if that fails each alone, so that only the bad ones lack."""
    instances = [
        ForwardKernelInstance(candidate, problem.variant)
        for problem, candidates in plan.items()
        for candidate in candidates
        if not isinstance(candidate, Peer)
    ]
    instances = list(dict.fromkeys(instances))
    with build_progress() as progress:
        try:
            load_kernels(instances, device, progress)
        except (BuildError, ValueError) as error:
            note(f"{error}\nbuilding each kernel alone")
            for instance in instances:
                with suppress(BuildError, ValueError):  # its check meets the error again
                    load_kernels([instance], device, progress)


def _measure_ceilings(session: Session, plan: Plan) -> None:
    for dtype in dict.fromkeys(problem.dtype for problem in plan):
        if str(dtype) not in session.ceilings:
            session.add_ceilings(bench.measure_ceilings(dtype))


def _sweep(out: Path, run_sweep: Callable[[Callable[[int, int, str], None]], None]) -> None:
    try:
        with build_progress() as progress:
            run_sweep(progress)
    except KeyboardInterrupt:
        note(f"interrupted; {out} has what is finished, and the same command goes on from there")
        raise
    except GpuLostError as error:
        note(f"{error}: going on without it")
        # --force has done its work; a second time it would forget the rows.
        arguments = [word for word in sys.orig_argv[1:] if word != "--force"]
        os.execv(sys.executable, [sys.executable, *arguments])
