"""`flashsmith report`: where the time of kernels goes, as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashsmith.cli.files import check_output, write_whole
from flashsmith.cli.selection import check_d_head, kernel_words, parse_dtype, select_instances
from flashsmith.cli.tables import (
    KERNEL_SETS,
    DHeadOption,
    DtypeOption,
    JsonOption,
    MaskOption,
    build_progress,
    note,
    print_json,
)
from flashsmith.configs import ForwardVariant

_DEFAULT_KERNELS = "prog"
_PAGE_HEAD_BYTES = 1024


def report(
    kernels: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY|NAME",
            help=f"Sets ({KERNEL_SETS}) or short forms. Default: KERNELS, else prog.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The page to write; one of an earlier report is replaced.")
    ] = Path("report.html"),
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file at --out that is no report.")
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(
            help="A folder of measured times, as bench writes it. Default: the newest in "
            "benchmarks/results, else of those that flashsmith brings."
        ),
    ] = None,
    arch: Annotated[
        str, typer.Option(help="The architecture whose registers and machine code are shown.")
    ] = "sm_90a",
    gpu: Annotated[
        str | None, typer.Option(help='The GPU of the results, like "NVIDIA H200".')
    ] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(
            min=1, help="The measured length to compare at. Default: the longest with most kernels."
        ),
    ] = None,
    dtype: DtypeOption = None,
    d_head: DHeadOption = None,
    mask: MaskOption = "full",
    as_json: JsonOption = False,
) -> None:
    """Write a page that explains kernels: one file of HTML that needs no network.

    Configuration, shared memory, registers and occupancy, machine code, emulator counts and bank
    conflicts, the least time that each unit needs, measured times beside peers, and what each
    kernel changes against the one before it. Needs no GPU: kernels are compiled and emulated, times
    are read. With --json the same facts are printed, and no page is written.

    What cannot be found out (no nvcc, no cuobjdump, no results) is named on the page.
    """
    chosen = select_instances(
        kernel_words(kernels, _DEFAULT_KERNELS),
        [ForwardVariant.from_name(mask)],
        parse_dtype(dtype),
        check_d_head(d_head),
    )
    if not as_json:
        out.parent.mkdir(parents=True, exist_ok=True)
        check_output("--out", out, force=force, is_own=_is_report)
    from flashsmith.report import Results, document_of, find_results, make_report, read_results

    folder = results or find_results(gpu)
    measured = read_results(folder, gpu) if folder else Results()
    if folder:
        note(f"times from {folder}")
    with build_progress() as progress:
        document = make_report(chosen, measured, arch, progress, seq_len)
    for part, why in document.missing.items():
        note(f"without {part}: {why}")
    if as_json:
        print_json(document_of(document))
        return
    from flashsmith.report.page import render

    page = render(document)
    write_whole(out, lambda staged: staged.write_text(page))
    typer.echo(out)


def _is_report(path: Path) -> bool:
    """Whether a file is a page that this command wrote, going by how it begins."""
    with path.open("rb") as file:
        head = file.read(_PAGE_HEAD_BYTES)
    return head.startswith(b"<!doctype html>") and b"<title>flashsmith" in head
