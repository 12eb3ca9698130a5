"""`flashsmith bench`: kernels and peers, timed over a grid of shapes."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from flashsmith.cli.options import (
    KERNEL_SETS,
    BatchOption,
    DHeadsOption,
    DtypesOption,
    HeadsOption,
    HiddenOption,
    JsonOption,
    MasksOption,
    TokensOption,
    make_request,
    parse_peers,
    split_words,
)
from flashsmith.cli.tables import ON_STDERR, note
from flashsmith.errors import GpuLostError

if TYPE_CHECKING:
    from flashsmith.lab.commands.bench import Benchmark, Measured

_BAD_KERNEL = 1  # exit code
_BOTH = "both"  # regimes
_DEFAULT_OUT = Path("profiles/bench")

_BenchKernelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kernels",
        "-k",
        metavar="default|KEY|NAME",
        help=f"default (what attention() takes at the shape), a set ({KERNEL_SETS}) or a "
        "kernel's short form; may be repeated. Default: KERNELS, else default.",
    ),
]
_PeersOption = Annotated[
    str,
    typer.Option(help="available, none, or some of fa2,cudnn,fa3,fa4,flex."),
]
_SeqLensOption = Annotated[
    str | None,
    typer.Option(
        "--seq-len", help="By commas. Default: 512,1024,2048,4096,8192,16384; counts 128,256."
    ),
]
_RegimeOption = Annotated[
    str,
    typer.Option(
        help="in-turn: candidates one after the other, L2 flushed before each run; "
        "back-to-back: each alone, repeated without a pause; or both."
    ),
]
_RepeatsOption = Annotated[int, typer.Option(min=1, help="In turn: runs of each candidate.")]
_MillisecondsOption = Annotated[
    float,
    typer.Option(min=1, help="Back to back: how long each candidate is timed."),
]
_OutOption = Annotated[
    Path, typer.Option(help="The folder of the results; one that was begun is gone on with.")
]
_ForceOption = Annotated[
    bool, typer.Option("--force", help="Begin anew in a folder that has results.")
]
_EmulatorCountsOption = Annotated[
    bool,
    typer.Option(
        "--emulator-counts", help="Without a GPU: what the emulator counts, in place of times."
    ),
]


def bench(
    kernels: _BenchKernelsOption = None,
    peers: _PeersOption = "available",
    dtypes: DtypesOption = "fp16",
    d_heads: DHeadsOption = "64,128",
    masks: MasksOption = "full,causal",
    seq_lens: _SeqLensOption = None,
    tokens: TokensOption = None,
    hidden: HiddenOption = None,
    batch: BatchOption = None,
    heads: HeadsOption = None,
    regime: _RegimeOption = "in-turn",
    repeats: _RepeatsOption = 30,
    milliseconds: _MillisecondsOption = 800.0,
    out: _OutOption = _DEFAULT_OUT,
    force: _ForceOption = False,
    emulator_counts: _EmulatorCountsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Time kernels and peers side by side over a grid of shapes; write CSV, Markdown and plots.

    Each candidate is checked against a reference first. Correct ones are timed by events, and
    compared with the best peer and with the GPU's matrix product and copy, all measured in the same
    run. Each regime has separate result files.

    The same command continues an interrupted benchmark. Exit code 1 if a kernel failed or was
    wrong; the others are measured anyway.
    """
    shapes: dict[str, Any] = {
        "d_heads": d_heads,
        "dtypes": dtypes,
        "masks": masks,
        "seq_lens": seq_lens,
        "tokens": tokens,
        "hidden": hidden,
        "batch": batch,
        "heads": heads,
    }
    numbers: dict[str, Any] = {
        "repeats": repeats, "milliseconds": milliseconds, "counts": emulator_counts,
    }  # fmt: skip
    request = make_request(kernels=kernels, **shapes)
    from flashsmith.cli import bench_table  # they load torch
    from flashsmith.lab.commands import bench as lab

    request = replace(request, words=request.words or (lab.DEFAULT,))
    words = {"kernels": list(request.words), "peers": peers, "regime": regime}
    arguments = {**shapes, **words, **numbers}
    names = parse_peers(peers)
    asked = lab.Benchmark(request, names, parse_regimes(regime), **numbers, arguments=arguments)
    measured = _run(asked, out, force)
    bench_table.report(measured, as_json)
    if measured.has_bad_kernel:
        raise typer.Exit(_BAD_KERNEL)


def parse_regimes(text: str) -> list[str]:
    from flashsmith.lab.bench.results import REGIMES  # it loads torch

    regimes = [*REGIMES] if text == _BOTH else split_words(text)
    if unknown := set(regimes) - {*REGIMES}:
        raise ValueError(
            f"--regime is {text!r}; {unknown.pop()!r} is not known, choose "
            f"{', '.join(REGIMES)} or {_BOTH}"
        )
    return regimes


def _run(asked: Benchmark, out: Path, force: bool) -> Measured:
    from flashsmith.lab.commands import bench as lab

    try:
        return lab.run(asked, out, ON_STDERR, force=force)
    except GpuLostError as error:
        note(f"{error}: going on without it")
        _start_again()


def _start_again() -> NoReturn:
    """Replaces this process by the same command, which gets a working GPU and continues in the
    folder."""
    # --force has done its work; a second time it would drop the rows.
    arguments = [word for word in sys.orig_argv[1:] if word != "--force"]
    os.execv(sys.executable, [sys.executable, *arguments])
