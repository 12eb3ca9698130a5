"""`flashsmith soak`: runs kernels on many problems to find one that gives a wrong result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashsmith.cli.options import (
    KERNEL_SETS,
    MAX_SEED,
    DeviceOption,
    DHeadOption,
    DtypeOption,
    JsonOption,
    make_request,
)
from flashsmith.cli.tables import ON_STDERR, note, print_json, print_table
from flashsmith.lab.commands.files import check_output

if TYPE_CHECKING:
    from flashsmith.lab.commands.soak import SoakReport

_WRONG = 1  # exit code

_SoakKernelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kernels",
        "-k",
        metavar="KEY|NAME",
        help="table: those of the tuned tables; heuristic: those chosen without one; a set "
        f"({KERNEL_SETS}); or a kernel's short form. May be repeated. Default: KERNELS, else "
        "table and heuristic.",
    ),
]
_SecondsOption = Annotated[
    float | None, typer.Option(min=1, help="Stop after so long; building not counted.")
]
_CasesOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Random problems for each dtype and d_head, after those at the boundaries of every "
        "kernel's tiles. Default: no end, until Ctrl-C or --seconds.",
    ),
]
_TileBoundariesOption = Annotated[
    bool,
    typer.Option(
        "--tile-boundaries/--no-tile-boundaries",
        help="The problems at the boundaries of tiles, first.",
    ),
]
_FORMER = "--seams/--no-seams"
_FormerBoundariesOption = Annotated[bool | None, typer.Option(_FORMER, hidden=True)]
_RerunsOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Of each problem, bitwise equal; on a GPU as many more beside another stream. "
        "Default: 12, emulator 2.",
    ),
]
_SeedOption = Annotated[
    int | None,
    typer.Option(
        min=-MAX_SEED,
        max=MAX_SEED,
        help="Of the random problems. Default: another one each time.",
    ),
]
_CaseOption = Annotated[
    str | None, typer.Option(help="One problem, as a failure printed it, in place of many.")
]
_OutOption = Annotated[
    Path | None,
    typer.Option(
        help="A CSV file with a row for each kernel; that of an earlier soak is replaced."
    ),
]
_ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace a file at --out that is none of a soak.")
]


def soak(
    kernels: _SoakKernelsOption = None,
    dtype: DtypeOption = None,
    d_head: DHeadOption = None,
    seconds: _SecondsOption = None,
    cases: _CasesOption = None,
    tile_boundaries: _TileBoundariesOption = True,
    reruns: _RerunsOption = None,
    seed: _SeedOption = None,
    case: _CaseOption = None,
    out: _OutOption = None,
    force: _ForceOption = False,
    device: DeviceOption = None,
    as_json: JsonOption = False,
    former_boundaries: _FormerBoundariesOption = None,
) -> None:
    """Run kernels on problems that stress the boundaries between tiles, and on random ones.

    o and the log-sum-exp are compared with float64, NaN and infinities included; reruns must be
    bitwise equal, on a GPU also beside other work; memory around the outputs must not be written.

    A failure is printed with the command that repeats it. Ctrl-C ends with a summary.

    Exit code 1 if a kernel was wrong.
    """
    if former_boundaries is not None:
        tile_boundaries = former_boundaries
        typer.echo(f"{_FORMER} is called --tile-boundaries/--no-tile-boundaries now", err=True)
    if case is not None:
        _refuse_with_case(
            kernels,
            {"dtype": dtype, "d-head": d_head, "seconds": seconds, "cases": cases, "seed": seed},
        )
    request = make_request(kernels=kernels, dtype=dtype, d_head=d_head, device=device)
    from flashsmith.lab.commands import soak as lab  # it loads torch

    asked = lab.Soak(request, case, tile_boundaries, cases, seconds, reruns, seed)
    if out is not None:
        check_output("--out", out, force=force, is_own=lab.is_log)
    report = lab.run(asked, ON_STDERR)
    _report(report, as_json)
    if out is not None:
        lab.write_log(out, report)
    if not report.ok:
        raise typer.Exit(_WRONG)


def _refuse_with_case(kernels: list[str] | None, options: dict[str, object]) -> None:
    if not kernels:
        raise ValueError("--case is for one kernel; name it with --kernels")
    if given := [f"--{name}" for name, value in options.items() if value is not None]:
        raise ValueError(f"--case says all; leave out {', '.join(given)}")


def _report(report: SoakReport, as_json: bool) -> None:
    from flashsmith.lab.soak import log  # it loads torch

    rows = log.rows(report.tallies.values())
    if as_json:
        print_json([dict(zip(log.COLUMNS, row, strict=True)) for row in rows])
    else:
        print_table(log.COLUMNS, rows)
    wrong = [tally for tally in report.tallies.values() if tally.failures]
    cases = [tally.cases for tally in report.tallies.values()]
    note(
        f"{sum(cases)} problems in {report.seconds:.0f} s, {min(cases, default=0)} to "
        f"{max(cases, default=0)} a kernel: {len(wrong)} of {len(report.tallies)} kernels "
        "were wrong"
    )
