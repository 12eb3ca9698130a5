"""What `flashsmith bench` does: plan, build, sweep, and write what came out."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import typer

from flashsmith import bench
from flashsmith.bench import summary
from flashsmith.bench.candidates import Candidate
from flashsmith.bench.grid import Problem, make_grid
from flashsmith.bench.monitor import GpuMonitor
from flashsmith.bench.peers import PEERS, Peer, find_peers
from flashsmith.bench.results import KERNEL, OK, CountRow, ResultFile, Row, TimeRow
from flashsmith.bench.session import ENVIRONMENT, Session
from flashsmith.bench.sweep import MeasureTimes, measure_counts, sweep
from flashsmith.cli.job import choose_device, load_kernels
from flashsmith.cli.selection import (
    check_d_head,
    parse_numbers,
    select_instances,
    split_words,
)
from flashsmith.cli.tables import build_progress, note, print_json, print_table
from flashsmith.configs import (
    FULL,
    DType,
    ForwardKernelConfig,
    ForwardKernelInstance,
    is_kernel_name,
    parse_kernel_name_into_instance,
)
from flashsmith.errors import BuildError, DeviceError, GpuLostError
from flashsmith.functional import select_config

Plan = dict[Problem, list[Candidate]]

_DEFAULT = "default"  # the kernel word for what attention() takes
_BAD_KERNEL = 1  # exit code


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
    repeats: int
    counts: bool

    def grid(self) -> list[Problem]:
        """All shapes. Raises ValueError that names the option that is wrong."""
        seq_lens, tokens, hidden = ("128,256", 256, 128) if self.counts else _GPU_GRID
        d_heads = parse_numbers("--d-heads", self.d_heads)
        for d_head in d_heads:
            check_d_head(d_head)
        return make_grid(
            [DType.from_string(name) for name in split_words(self.dtypes)],
            d_heads,
            split_words(self.masks),
            parse_numbers("--seq-lens", self.seq_lens or seq_lens),
            tokens=self.tokens or tokens,
            hidden=self.hidden or hidden,
        )

    def chosen_peers(self) -> list[Peer]:
        if self.counts:
            if self.peers not in ("available", "none"):
                raise ValueError("--emulator-counts counts kernels only; leave out --peers")
            return []
        if self.peers == "none":
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
    device = _choose_device(request.counts)
    peers = request.chosen_peers()
    plan = make_plan(problems, request.kernels, peers, device)
    arguments = asdict(request) | {"peers": [peer.name for peer in peers]}
    name = "counts" if request.counts else "forward"
    session = Session.open(
        out,
        bench.environment_stamp(device),
        arguments,
        results=f"{name}.csv",
        stamp="counts.json" if request.counts else ENVIRONMENT,
        force=force,
    )
    plots = _find_plots()
    _load(plan, device)
    rows: Sequence[Row]
    if request.counts:
        counts = ResultFile(CountRow, out / f"{name}.csv")
        _sweep(out, lambda progress: sweep(plan, measure_counts, counts, progress))
        markdown = summary.counts_markdown(counts.rows, session.document)
        files = plots.plot_counts(counts.rows, out) if plots else []
        rows = counts.rows
    else:
        times = ResultFile(TimeRow, out / f"{name}.csv")
        _measure_ceilings(session, plan)
        timer = partial(bench.time_interleaved, repeats=request.repeats)
        with GpuMonitor() as monitor:
            measure = MeasureTimes(session.ceilings, timer, monitor.since, device)
            _sweep(out, lambda progress: sweep(plan, measure, times, progress))
        markdown = summary.times_markdown(times.rows, session.document)
        gpu = str(session.document["gpu"])
        files = plots.plot_times(times.rows, session.ceilings, gpu, out) if plots else []
        rows = times.rows
    (out / f"{name}.md").write_text(markdown)
    files = [out / f"{name}.csv", out / f"{name}.md", session.path, *files]
    _report(session, rows, files, as_json)


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
            f"kernel {unused[0]} fits no shape of this grid; choose --dtype, --d-heads and --masks "
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


def _find_plots() -> ModuleType | None:
    if importlib.util.find_spec("matplotlib") is None:
        note(
            "no plots: matplotlib is not installed (`pip install 'flashsmith[bench]'`); the same "
            "command draws them afterwards"
        )
        return None
    from flashsmith.bench import plots

    return plots


def _report(session: Session, rows: Sequence[Row], files: Sequence[Path], as_json: bool) -> None:
    if as_json:
        document = {
            "environment": session.document,
            "rows": [asdict(row) for row in rows],
            "files": files,
        }
        print_json(document)
    else:
        _print(rows)
        note("\n".join(str(path) for path in files))
    bad = [row for row in rows if row.status != OK]
    for row in bad:
        note(f"{row.status}: {row.kernel} at {row.problem}: {row.reason}")
    if any(row.kind == KERNEL for row in bad):
        raise typer.Exit(_BAD_KERNEL)


def _print(rows: Sequence[Row]) -> None:
    table: list[dict[str, Any]] = []
    times = [row for row in rows if isinstance(row, TimeRow)]
    for panel, by_length in summary.panels(times).items():
        for seq_len, found in sorted(by_length.items()):
            best = found.get(summary.OURS)
            table.append(
                dict(zip(("dtype", "d_head", "mask"), panel, strict=True))
                | {"seq_len": seq_len}
                | {name: _rate(found.get(name)) for name in summary.series(times)}
                | {"of ceiling": best and best.share_of_ceiling}
                | {"of best peer": best and best.ratio_to_best_peer}
                | {"best kernel": best and best.kernel}
            )
    for row in rows:
        if isinstance(row, CountRow) and row.status == OK:
            table.append(
                {"kernel": row.kernel, "mask": row.mask, "seq_len": row.seq_len}
                | {"mma": row.mma, "ldmatrix": row.ldmatrix, "cp.async": row.cp_async}
                | {"smem wavefronts": row.shared_wavefronts}
                | {"bank conflicts": summary.bank_conflicts(row)}
            )
    if table:
        print_table(list(table[0]), [list(line.values()) for line in table])


def _rate(row: TimeRow | None) -> float | None:
    return None if row is None else row.tflops
