"""`flashsmith profile`: what Nsight Compute measures of kernels, as one table."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashsmith.cli.selection import (
    kernel_words,
    parse_d_heads,
    parse_dtypes,
    parse_masks,
    parse_numbers,
    select_instances,
)
from flashsmith.cli.tables import (
    BatchOption,
    DHeadsOption,
    HeadsOption,
    JsonOption,
    KernelsOption,
    MasksOption,
    build_progress,
    note,
    print_json,
    print_table,
)
from flashsmith.configs import DType, ForwardKernelInstance, ForwardVariant
from flashsmith.errors import DeviceError, ProfilerError

if TYPE_CHECKING:
    from flashsmith.bench.grid import Problem
    from flashsmith.bench.peers import Peer
    from flashsmith.bench.profile import KernelProfile

    Plan = dict[Problem, list[ForwardKernelInstance]]

_STALLS_SHOWN = 4


def profile(
    seq_lens: Annotated[str, typer.Option("--seq-len", help="By commas.")] = "4096",
    d_heads: DHeadsOption = "128",
    runs: Annotated[int, typer.Option(min=1, help="Launches of a kernel to average.")] = 1,
    kernels: KernelsOption = None,
    peers: Annotated[
        str, typer.Option(help="Of fa2,cudnn,fa3,fa4,flex, those to profile beside; or none.")
    ] = "fa2",
    dtypes: Annotated[
        str | None,
        typer.Option(
            "--dtype", help="fp16, bf16 or fp16,bf16. Default: all that the kernels have."
        ),
    ] = None,
    masks: MasksOption = "full",
    batch: BatchOption = None,
    heads: HeadsOption = None,
    tokens: Annotated[int, typer.Option(min=1, help="In all sequences of a batch.")] = 16384,
    hidden: Annotated[int, typer.Option(min=1, help="Heads times d_head.")] = 2048,
    out: Annotated[
        Path, typer.Option(help="The folder for ncu's raw reports.", file_okay=False)
    ] = Path("profiles"),
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Profile kernels with Nsight Compute (ncu), one row a kernel and shape, runs averaged.

    Time, cycles, registers, cache hits, bank conflicts, throughput of DRAM and L2, utilisation of
    tensor cores and of the unit for ex2, what warps wait for, TFLOP/s, and percent of the
    baseline: FA2, or without it the first kernel.

    Kernels: by default KERNELS, else all. Clocks are left as they are.
    """
    if as_csv and as_json:
        raise ValueError("--csv and --json are two formats for one output; choose one")
    from flashsmith.bench.grid import make_grid  # it loads torch

    plan = _make_plan(
        kernel_words(kernels, "all"),
        parse_masks(masks),
        parse_dtypes(dtypes),
        [d_head for d_head in parse_d_heads(d_heads) if d_head is not None],
        partial(
            make_grid,
            seq_lens=parse_numbers("--seq-len", seq_lens),
            tokens=tokens,
            hidden=hidden,
            batch=batch,
            heads=heads,
        ),
    )
    from flashsmith.bench import ncu

    chosen_peers = _choose_peers(peers)
    ncu.find_ncu()
    _require_gpu()
    _say_missing(chosen_peers)
    _build(plan)
    usable = [peer.name for peer in chosen_peers if peer.is_available]
    profiles: list[KernelProfile] = []
    try:
        for number, (problem, instances) in enumerate(plan.items(), 1):
            note(f"[{number}/{len(plan)}] {problem}: {len(instances)} kernels")
            profiles += _profile(problem, instances, usable, runs, out)
    except (ProfilerError, KeyboardInterrupt):
        if profiles:  # of the problems before
            _report(profiles, as_csv, as_json)
        raise
    _report(profiles, as_csv, as_json)


def _make_plan(
    words: list[str],
    variants: Sequence[ForwardVariant],
    dtypes: Sequence[DType | None],
    d_heads: Sequence[int],
    make_grid: Callable[..., list[Problem]],
) -> Plan:
    """The kernels of each problem; a problem has one dtype, as its tensors have."""
    from flashsmith.cli.job import check_fit

    plan: Plan = {}
    for d_head, variant, dtype in product(d_heads, variants, dtypes):
        instances = select_instances(words, [variant], dtype, d_head)
        if other := [instance for instance in instances if instance.variant != variant]:
            raise ValueError(f"kernel {other[0]} is causal; add --mask causal")
        for kind in sorted({instance.config.dtype for instance in instances}):
            of_kind = [instance for instance in instances if instance.config.dtype == kind]
            for problem in make_grid([kind], [d_head], [variant.name]):
                check_fit(of_kind, problem.seq_len)
                plan[problem] = of_kind
    return plan


def _require_gpu() -> None:
    from flashsmith.cli.job import choose_device

    where, why_not = choose_device(None)
    if where != "cuda":
        raise DeviceError(
            f"profiling needs an NVIDIA GPU of compute capability 8.0 or newer, and {why_not}; "
            "`flashsmith run --device cpu` counts on the emulator"
        )


def _choose_peers(text: str) -> list[Peer]:
    from flashsmith.bench.peers import find_peers

    if text.strip().lower() in ("", "none"):
        return []
    return find_peers([name.strip().lower() for name in text.split(",")])


def _say_missing(peers: Sequence[Peer]) -> None:
    for peer in peers:
        if why := peer.why_missing():
            note(f"without {peer.name}: {why}")


def _build(plan: Plan) -> None:
    """Before ncu starts, which would watch the compilers."""
    from flashsmith.bench.launch import load_kernels

    with build_progress() as progress:
        for instances in {tuple(instances): None for instances in plan.values()}:
            load_kernels(instances, "cuda", progress)


def _profile(
    problem: Problem,
    instances: Sequence[ForwardKernelInstance],
    peers: Sequence[str],
    runs: int,
    out: Path,
) -> list[KernelProfile]:
    from flashsmith.bench import launch, ncu
    from flashsmith.bench.profile import ALL_METRICS, tabulate

    kernels = [instance.config.short_form() for instance in instances]
    target = launch.target_command(problem, kernels, peers, runs)
    name = (
        f"ncu_{problem.dtype}_d{problem.d_head}_{problem.mask}"
        f"_b{problem.batch}_h{problem.heads}_s{problem.seq_len}.csv"
    )
    report = out / name.lower()
    launches, stderr = ncu.profile(target, ALL_METRICS, report)
    for line in stderr.splitlines():
        if line.startswith(launch.LEFT_OUT):
            note(line)
    note(f"ncu's raw report is {report}")
    if profiles := tabulate(launches, problem):
        return profiles
    names = ", ".join(sorted({each.kernel for each in launches}))
    raise ProfilerError(f"ncu profiled no kernel that is known here, but {names}; see {report}")


def _report(profiles: Sequence[KernelProfile], as_csv: bool, as_json: bool) -> None:
    if as_json:
        from flashsmith.bench import environment_stamp

        print_json(
            {"environment": environment_stamp(), "kernels": [each.as_row() for each in profiles]}
        )
    elif as_csv:
        rows = [each.as_row() for each in profiles]
        columns = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(sys.stdout, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        _print_profiles(profiles)


def _print_profiles(profiles: Sequence[KernelProfile]) -> None:
    rows = []
    for each in profiles:
        metrics, largest = each.metrics, list(each.stalls.items())[:_STALLS_SHOWN]
        rows.append(
            {
                "kernel": each.kernel,
                "dtype": str(each.problem.dtype),
                "d_head": each.problem.d_head,
                "mask": each.problem.mask,
                "seq_len": each.problem.seq_len,
                "us": metrics["duration_us"],
                "cycles": metrics["cycles"],
                "registers": metrics["registers"],
                "L2 hit %": metrics["l2_hit_percent"],
                "bank conflicts": metrics["bank_conflicts"],
                "DRAM %": metrics["dram_percent"],
                "L2 %": metrics["l2_percent"],
                "tensor %": metrics["tensor_percent"],
                "ex2 %": metrics["ex2_percent"],
                "issue %": metrics["issue_percent"],
                "stalls, warps an issue": ", ".join(f"{name} {n:.2f}" for name, n in largest),
                "TFLOP/s": each.tflops,
                "attn TFLOP/s": each.attn_tflops,
                "% of baseline": each.percent_of_baseline,
            }
        )
    print_table(list(rows[0]), [list(row.values()) for row in rows])
