"""`flashsmith tune`: which kernel is best for a shape on this GPU, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashsmith import settings
from flashsmith.cli.tables import (
    KERNEL_SETS,
    BatchOption,
    DHeadsOption,
    DtypesOption,
    HeadsOption,
    HiddenOption,
    JsonOption,
    MasksOption,
    TokensOption,
)


def tune(
    d_heads: DHeadsOption = "128,64",
    dtypes: DtypesOption = "fp16,bf16",
    masks: MasksOption = "full,causal",
    seq_lens: Annotated[
        str | None,
        typer.Option(
            "--seq-len",
            help="By commas. Default: 512,1024,2048,4096,8192,16384; counts 256.",
        ),
    ] = None,
    tokens: TokensOption = None,
    hidden: HiddenOption = None,
    batch: BatchOption = None,
    heads: HeadsOption = None,
    kernels: Annotated[
        list[str] | None,
        typer.Option(
            "--kernels",
            "-k",
            metavar="KEY|NAME",
            help=f"Candidates: a set ({KERNEL_SETS}) or a kernel's short form; may be repeated. "
            "Default: KERNELS, else tune, on compute capability 9.0 sm90-tune. The rule's choice "
            "is always among them.",
        ),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Timed runs of each finalist; default: 30.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The table; default: yours for this GPU (FLASHSMITH_TUNED)."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard what the table, or an interrupted run, has.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Measure nothing: show what is chosen now, and why.")
    ] = False,
    gpu: Annotated[
        str | None,
        typer.Option(help='With --explain: the GPU, like "NVIDIA H200"; default: this one.'),
    ] = None,
    emulator_counts: Annotated[
        bool,
        typer.Option(
            "--emulator-counts",
            help="Without a GPU: rank by what the emulator counts. No times; nothing is kept.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find the fastest kernel for each shape on this GPU, and keep it in a table.

    Candidates are built together, each is checked against a reference, and what is right is timed
    in three rounds: all of them a few times, the fastest third more often, and of those again the
    fastest third. What is left is soaked (`flashsmith soak`): only kernels that are right wherever
    their tiles meet enter the table. `attention` then takes the winner for all lengths of its
    bucket: up to 512, 1024, and so on to 16384 and beyond.

    An interrupted run goes on where it was, by the same command. A table of another GPU or driver,
    or of other kernel sources, is refused.
    """
    from flashsmith.cli import tune_job  # it loads torch

    set_by_environment = settings.KERNELS.get()
    request = tune_job.Request(
        d_heads=d_heads,
        dtypes=dtypes,
        masks=masks,
        seq_lens=seq_lens,
        tokens=tokens,
        hidden=hidden,
        batch=batch,
        heads=heads,
        kernels=kernels or ([set_by_environment] if set_by_environment else []),
        counts=emulator_counts,
    )
    given: dict[str, object] = {
        "--kernels": kernels,
        "--repeats": repeats,
        "--out": out,
        "--fresh": fresh,
    }
    if explain:
        _refuse("--explain measures nothing", {**given, "--emulator-counts": emulator_counts})
        tune_job.explain(request, gpu, as_json)
        return
    _refuse("without --explain this GPU is the one", {"--gpu": gpu})
    if emulator_counts:
        del given["--kernels"]
        _refuse("--emulator-counts keeps and times nothing", given)
        tune_job.count(request, as_json)
        return
    tune_job.measure(request, out, repeats=repeats, fresh=fresh, as_json=as_json)


def _refuse(why: str, options: dict[str, object]) -> None:
    if given := [name for name, value in options.items() if value]:
        raise ValueError(f"{why}; leave out {', '.join(given)}")
