"""`flashsmith soak`: kernels on many problems, to find one that gives a wrong answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashsmith.cli.selection import check_d_head, parse_dtype
from flashsmith.cli.tables import (
    KERNEL_SETS,
    DeviceOption,
    DHeadOption,
    DtypeOption,
    JsonOption,
)


def soak(
    kernels: Annotated[
        list[str] | None,
        typer.Option(
            "--kernels",
            "-k",
            metavar="KEY|NAME",
            help="table: those of the tuned tables; rule: those chosen without one; a set "
            f"({KERNEL_SETS}); or a kernel's short form. May be repeated. Default: KERNELS, else "
            "table and rule.",
        ),
    ] = None,
    dtype: DtypeOption = None,
    d_head: DHeadOption = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Stop after so long; building not counted.")
    ] = None,
    cases: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Random problems for each dtype and d_head, after those at the seams of every "
            "kernel's tiles. Default: no end, until Ctrl-C or --seconds.",
        ),
    ] = None,
    seams: Annotated[
        bool, typer.Option("--seams/--no-seams", help="The problems at the seams of tiles, first.")
    ] = True,
    reruns: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Of each problem, bitwise equal; on a GPU as many more beside another stream. "
            "Default: 12, emulator 2.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the random problems. Default: another one each time.")
    ] = None,
    case: Annotated[
        str | None, typer.Option(help="One problem, as a failure printed it, in place of many.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A CSV file with a row for each kernel; that of an earlier soak is replaced."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file at --out that is none of a soak.")
    ] = False,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run kernels on problems that stress the seams between tiles, and on random ones.

    o and the log-sum-exp are compared with float64, NaN and infinities included; reruns have to be
    bitwise equal, on a GPU also beside other work; nothing around the outputs may be written.

    A failure is printed with the command that runs it again. Ctrl-C ends with a summary.

    Exit code 1 if a kernel was wrong.
    """
    from flashsmith.cli import soak_job  # it loads torch

    request = soak_job.Request(
        kernels=kernels,
        dtype=parse_dtype(dtype),
        d_head=check_d_head(d_head),
        seconds=seconds,
        cases=cases,
        seams=seams,
        reruns=reruns,
        seed=seed,
        case=case,
        device=device,
    )
    if not soak_job.run(request, out, as_json, force=force):
        raise typer.Exit(1)
