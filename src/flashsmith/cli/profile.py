"""`flashsmith profile`: kernels measured by Nsight Compute, as one table."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashsmith.cli.options import (
    BatchOption,
    DHeadsOption,
    HeadsOption,
    JsonOption,
    KernelsOption,
    MasksOption,
    make_request,
    parse_peers,
)
from flashsmith.cli.tables import ON_STDERR, print_json, print_table
from flashsmith.errors import ProfilerError

if TYPE_CHECKING:
    from flashsmith.lab.bench.profile import KernelProfile

_STALLS_SHOWN = 4


def profile(
    seq_lens: Annotated[str, typer.Option("--seq-len", help="By commas.")] = "4096",
    d_heads: DHeadsOption = "128",
    repeats: Annotated[int, typer.Option(min=1, help="Launches of a kernel to average.")] = 1,
    kernels: KernelsOption = None,
    peers: Annotated[
        str, typer.Option(help="available, none, or some of fa2,cudnn,fa3,fa4,flex.")
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
    """Profile kernels with Nsight Compute (ncu): one row a kernel and shape, averaged over runs.

    Time, cycles, registers, cache hits, bank conflicts, throughput of DRAM and L2, utilisation of
    tensor cores and of the unit for ex2, stall reasons of warps, TFLOP/s, and percent of the
    baseline: FA2, or without it the first kernel.

    Kernels: by default KERNELS, else all. Clocks are not changed.
    """
    if as_csv and as_json:
        raise ValueError("--csv and --json are two formats for one output; choose one")
    request = make_request(
        kernels=kernels,
        masks=masks,
        dtypes=dtypes,
        d_heads=d_heads,
        seq_lens=seq_lens,
        tokens=tokens,
        hidden=hidden,
        batch=batch,
        heads=heads,
    )
    from flashsmith.lab.commands.profile import Profiling
    from flashsmith.lab.commands.profile import profile as profiles_of  # it loads torch

    profiles: list[KernelProfile] = []
    try:
        for found in profiles_of(Profiling(request, parse_peers(peers), repeats, out), ON_STDERR):
            profiles += found
    except (ProfilerError, KeyboardInterrupt):
        if profiles:  # from the workloads before
            _report(profiles, as_csv, as_json)
        raise
    _report(profiles, as_csv, as_json)


def _report(profiles: Sequence[KernelProfile], as_csv: bool, as_json: bool) -> None:
    if as_json:
        from flashsmith.lab.bench.stamp import environment_stamp

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
                **dict(zip(("dtype", "d_head", "mask"), each.workload.kind, strict=True)),
                "seq_len": each.workload.problem.seq_len_q,
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
