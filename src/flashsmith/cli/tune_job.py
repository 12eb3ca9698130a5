"""What `flashsmith tune` does: measure, explain, or count on the emulator."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from flashsmith.bench import environment_stamp
from flashsmith.bench.grid import Problem, make_grid
from flashsmith.bench.results import OK, CountRow
from flashsmith.bench.sweep import measure_counts
from flashsmith.cli import explanation
from flashsmith.cli.job import choose_device, load_kernels
from flashsmith.cli.selection import (
    parse_d_heads,
    parse_numbers,
    select_instances,
    split_words,
)
from flashsmith.cli.tables import build_progress, note, print_json, print_table
from flashsmith.configs import (
    DType,
    ForwardKernelConfig,
    ForwardKernelInstance,
    is_kernel_name,
    parse_kernel_name_into_config,
)
from flashsmith.configs.families import families_for
from flashsmith.configs.sm80.forward import MIN_COMPUTE_CAPABILITY
from flashsmith.errors import DeviceError, GpuLostError
from flashsmith.gpus import get_gpu_architecture
from flashsmith.runtime.counters import explain_headings, table_of
from flashsmith.runtime.device import target_of
from flashsmith.selection.tables import Entry, user_table_path
from flashsmith.tuning import KernelLab, journal_path, make_plan, tuning_session
from flashsmith.tuning.ranking import RANKED_BY, counting_arch, memory_work
from flashsmith.tuning.search import REPEATS

_GPU_GRID = ("512,1024,2048,4096,8192,16384", 16384, 2048)
_COUNTS_GRID = ("256", 256, 128)
_EXPLAINED_IN_FULL = 4  # shapes, at most; more are a table


@dataclass(frozen=True)
class Request:
    """The options that say which shapes and candidates, as written."""

    d_heads: str
    dtypes: str
    masks: str
    seq_lens: str | None
    tokens: int | None
    hidden: int | None
    batch: int | None
    heads: int | None
    kernels: list[str]  # none: the tuning space of the GPU
    counts: bool = False

    def problems(self) -> list[Problem]:
        """All shapes. Raises ValueError that names the option that is wrong."""
        seq_lens, tokens, hidden = _COUNTS_GRID if self.counts else _GPU_GRID
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

    def configs(self, problems: Iterable[Problem], arch: str) -> list[ForwardKernelConfig]:
        """What the kernel words choose for the dtypes and head dimensions of the problems."""
        words = self.kernels or [families_for(arch)[0].tuning_set]
        names = [word for word in words if is_kernel_name(word)]
        keys = [word for word in words if word not in names]
        named = [parse_kernel_name_into_config(name) for name in names]
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
    request: Request, out: Path | None, *, repeats: int | None, fresh: bool, as_json: bool
) -> None:
    problems = request.problems()
    if request.kernels:  # wrong words, on any architecture, are told before the GPU is asked for
        request.configs(problems, "sm_80")
    device, why = choose_device(None)
    if device != "cuda":
        raise DeviceError(
            f"nothing is tuned: {why}. --explain shows what is chosen without tuning, "
            "--emulator-counts ranks by what the emulator counts"
        )
    (arch,) = target_of(torch.device(device)).archs
    plan = make_plan(problems, request.configs(problems, arch), arch)
    stamp = environment_stamp()
    out = out or user_table_path(stamp["gpu"])
    if fresh:
        _refuse_to_discard_others(out)
    with tuning_session(out, stamp, fresh) as session:
        if len(session.journal):
            note(f"going on with {session.journal.path}")
        lab = KernelLab(device)
        try:
            with build_progress() as progress:
                lab.build(plan, progress)
            with build_progress() as progress:
                table = session.run(plan, lab, progress, repeats or REPEATS)
        except (KeyboardInterrupt, GpuLostError):
            note(f"{journal_path(out)} has what is measured; the same command goes on from there")
            raise
    entries = list(table.entries.values())
    for entry in entries:
        for kernel, reason in entry.excluded.items():
            note(f"excluded: {kernel} {entry.mask} at length {entry.seq_len}: {reason}")
    if as_json:
        print_json({"table": out, "stamp": table.stamp, "entries": [_row(e) for e in entries]})
        return
    rows = [_row(entry) for entry in entries]
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    note(f"the table is {out}")


def _refuse_to_discard_others(out: Path) -> None:
    """Raises ValueError if there is a file at ``out`` that the tuner has not written."""
    if not out.exists():
        return
    try:
        document = json.loads(out.read_bytes())
    except (OSError, ValueError):
        document = None
    if not (isinstance(document, dict) and {"stamp", "entries"} <= document.keys()):
        raise ValueError(
            f"--fresh discards tables of `flashsmith tune` only, and {out} is none; remove it, or "
            "choose another --out"
        )


def _row(entry: Entry) -> dict[str, Any]:
    best, *others = entry.ranked
    return {
        "kernel": best.config.short_form(),
        "mask": entry.mask,
        "seq_len": entry.seq_len,
        "batch": entry.batch,
        "heads": entry.heads,
        "ms": best.ms,
        "TFLOP/s": best.tflops,
        "ms back to back": best.ms_back_to_back,
        "next best": f"+{100 * (others[0].cost / best.cost - 1):.1f} %" if others else None,
        "rule": entry.rule_ratio and f"+{100 * (entry.rule_ratio - 1):.1f} %",
        "tried": entry.tried,
        "excluded": len(entry.excluded),
    }


def explain(request: Request, gpu: str | None, as_json: bool) -> None:
    """Why each shape gets its kernel; on the GPU of this name, on this one, or on the emulator."""
    capability = None
    if gpu is not None:
        _check_supported(gpu)
    elif torch.cuda.is_available():
        gpu = torch.cuda.get_device_name()
        capability = torch.cuda.get_device_capability()
    explained = [explanation.explain(problem, gpu, capability) for problem in request.problems()]
    if as_json:
        print_json([asdict(item) for item in explained])
    elif len(explained) <= _EXPLAINED_IN_FULL:
        for i, item in enumerate(explained):
            if i > 0:
                typer.echo()  # a blank line between them
            explanation.print_one(item)
    else:
        explanation.print_many(explained)


def _check_supported(gpu: str) -> None:
    """Raises ValueError if no GPU of this name is known, or if it is too old for the kernels."""
    capability = get_gpu_architecture(gpu).compute_capability
    if capability < MIN_COMPUTE_CAPABILITY:
        have, need = (".".join(map(str, pair)) for pair in (capability, MIN_COMPUTE_CAPABILITY))
        raise ValueError(f"gpu {gpu!r} has compute capability {have}; the kernels need {need}")


def count(request: Request, as_json: bool) -> None:
    problems = request.problems()
    configs = request.configs(problems, counting_arch([]))
    plan = make_plan(problems, configs, counting_arch(configs))
    instances = [
        ForwardKernelInstance(cfg, problem.variant) for problem in plan for cfg in plan[problem]
    ]
    with build_progress() as progress:
        load_kernels(list(dict.fromkeys(instances)), "cpu", progress)
    rows: list[CountRow] = []
    with build_progress() as progress:
        for done, (problem, configs) in enumerate(plan.items()):
            progress(done, len(plan), str(problem))
            counted = measure_counts(problem, configs)
            rows += sorted(counted, key=lambda row: (row.status != OK, *memory_work(row.counts)))
    if as_json:
        print_json({"measured": "emulator counts, no times", "rows": [asdict(row) for row in rows]})
    else:
        headings, cells = table_of([row.counts for row in rows])
        names = [[row.kernel, row.mask, row.seq_len, row.status] for row in rows]
        lines = [[*name, *found] for name, found in zip(names, cells, strict=True)]
        print_table(["kernel", "mask", "seq_len", "", *headings], lines)
        note(f"counted: {explain_headings(headings)}")
    note(RANKED_BY)
