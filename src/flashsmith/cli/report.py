"""`flashsmith report`: explains where kernels spend their time, as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashsmith import settings
from flashsmith.cli.options import (
    KERNEL_SETS,
    DHeadOption,
    DtypeOption,
    JsonOption,
    MaskOption,
    make_request,
)
from flashsmith.cli.tables import note, print_json
from flashsmith.jit import show_progress
from flashsmith.lab.commands.files import check_output, write_whole

_DEFAULT_KERNELS = settings.SM80_SETS.progression
_PAGE_HEAD_BYTES = 1024

_ReportKernelsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY|NAME",
        help=f"Sets ({KERNEL_SETS}) or short forms. Default: KERNELS, else prog.",
    ),
]
_OutOption = Annotated[
    Path, typer.Option(help="The page to write; one of an earlier report is replaced.")
]
_ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace a file at --out that is no report.")
]
_ResultsOption = Annotated[
    Path | None,
    typer.Option(
        help="A folder of measured times, as bench writes it. Default: of benchmarks/results, else "
        "of those that flashsmith brings, the newest <gpu>/<date> that has an environment.json."
    ),
]
_ArchOption = Annotated[
    str, typer.Option(help="The architecture whose registers and machine code are shown.")
]
_GpuOption = Annotated[str | None, typer.Option(help='The GPU of the results, like "NVIDIA H200".')]
_SeqLenOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="The measured length to compare at. Default: the longest with most kernels."
    ),
]


def report(
    kernels: _ReportKernelsArgument = None,
    out: _OutOption = Path("report.html"),
    force: _ForceOption = False,
    results: _ResultsOption = None,
    arch: _ArchOption = "sm_90a",
    gpu: _GpuOption = None,
    seq_len: _SeqLenOption = None,
    dtype: DtypeOption = None,
    d_head: DHeadOption = None,
    mask: MaskOption = "full",
    as_json: JsonOption = False,
) -> None:
    """Write a page that explains kernels: one file of HTML that needs no network.

    Configuration, shared memory, registers and occupancy, machine code, emulator counts and bank
    conflicts, the min time that each unit needs, measured times beside peers, and what each kernel
    changes against the one before it. It needs no GPU: kernels are compiled and emulated, times are
    read from files. --json prints the same facts, and writes no page.

    The page names facts that are not available (no nvcc, no cuobjdump, no results).
    """
    request = make_request(kernels=kernels, mask=mask, dtype=dtype, d_head=d_head)
    chosen = request.instances(_DEFAULT_KERNELS, forward_only=False)
    if not as_json:
        out.parent.mkdir(parents=True, exist_ok=True)
        check_output("--out", out, force=force, is_own=_is_report)
    from flashsmith.lab.report import Results, document_of, find_results, make_report, read_results

    folder = results or find_results(gpu)
    measured = read_results(folder, gpu) if folder else Results()
    if folder:
        note(f"times from {folder}")
    with show_progress() as progress:
        document = make_report(chosen, measured, arch, progress, seq_len)
    for part, why in document.missing.items():
        note(f"without {part}: {why}")
    if as_json:
        print_json(document_of(document))
        return
    from flashsmith.lab.report.page import render

    page = render(document)
    write_whole(out, lambda staged: staged.write_text(page))
    typer.echo(out)


def _is_report(path: Path) -> bool:
    """Returns whether a file begins like a page that this command writes."""
    with path.open("rb") as file:
        head = file.read(_PAGE_HEAD_BYTES)
    return head.startswith(b"<!doctype html>") and b"<title>flashsmith" in head
