"""`flashsmith bench`: kernels and peers, timed over a grid of shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashsmith.cli.selection import kernel_words
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

_DEFAULT_OUT = Path("profiles/bench")


def bench(
    kernels: Annotated[
        list[str] | None,
        typer.Option(
            "--kernels",
            "-k",
            metavar="default|KEY|NAME",
            help=f"default (what attention() takes at the shape), a set ({KERNEL_SETS}) or a "
            "kernel's short form; may be repeated. Default: KERNELS, else default.",
        ),
    ] = None,
    peers: Annotated[
        str,
        typer.Option(help="available, none, or some of fa2,cudnn,fa3,fa4,flex."),
    ] = "available",
    dtypes: DtypesOption = "fp16",
    d_heads: DHeadsOption = "64,128",
    masks: MasksOption = "full,causal",
    seq_lens: Annotated[
        str | None,
        typer.Option(
            "--seq-len", help="By commas. Default: 512,1024,2048,4096,8192,16384; counts 128,256."
        ),
    ] = None,
    tokens: TokensOption = None,
    hidden: HiddenOption = None,
    batch: BatchOption = None,
    heads: HeadsOption = None,
    regime: Annotated[
        str,
        typer.Option(
            help="in-turn: candidates one after the other, L2 flushed before each run; "
            "back-to-back: each alone, repeated without a pause; or both."
        ),
    ] = "in-turn",
    repeats: Annotated[int, typer.Option(min=1, help="In turn: runs of each candidate.")] = 30,
    milliseconds: Annotated[
        float,
        typer.Option(min=1, help="Back to back: how long each candidate is timed."),
    ] = 800.0,
    out: Annotated[
        Path, typer.Option(help="The folder of the results; one that was begun is gone on with.")
    ] = _DEFAULT_OUT,
    force: Annotated[
        bool, typer.Option("--force", help="Begin anew in a folder that has results.")
    ] = False,
    emulator_counts: Annotated[
        bool,
        typer.Option(
            "--emulator-counts", help="Without a GPU: what the emulator counts, in place of times."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Time kernels and peers side by side over a grid of shapes; write CSV, Markdown and plots.

    Each candidate is checked against a reference first; what is right is timed by events, and
    compared with the best peer of the same run, and with the card's own matrix product and copy,
    measured in the same run. The regimes' results are in files of their own.

    An interrupted benchmark goes on where it was, by the same command. Exit code 1 if a kernel
    failed or was wrong; the others are measured all the same.
    """
    from flashsmith.cli import bench_job  # it loads torch

    request = bench_job.Request(
        kernels=kernel_words(kernels, "default"),
        peers=peers,
        dtypes=dtypes,
        d_heads=d_heads,
        masks=masks,
        seq_lens=seq_lens,
        tokens=tokens,
        hidden=hidden,
        regime=regime,
        batch=batch,
        heads=heads,
        repeats=repeats,
        milliseconds=milliseconds,
        counts=emulator_counts,
    )
    bench_job.run(request, out, force=force, as_json=as_json)
