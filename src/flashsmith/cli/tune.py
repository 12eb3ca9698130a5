"""`flashsmith tune`: finds the best kernel for each shape on this GPU, and explains choices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
)
from flashsmith.cli.tables import ON_STDERR
from flashsmith.configs.registry import OPERATIONS

_SeqLensOption = Annotated[
    str | None,
    typer.Option(
        "--seq-len",
        help="By commas, in place of --grid; counts by default 256.",
    ),
]
_GridOption = Annotated[
    str | None,
    typer.Option(
        "--grid",
        help="Sizes by name: full, small, chunk, decode, by commas; default: all of them.",
    ),
]
_TuneKernelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kernels",
        "-k",
        metavar="KEY|NAME",
        help=f"Candidates: a set ({KERNEL_SETS}) or a kernel's short form; may be repeated. "
        "Default: KERNELS, else tune, on compute capability 9.0 sm90-tune. The heuristic's choice "
        "is always among them.",
    ),
]
_RepeatsOption = Annotated[
    int | None, typer.Option(min=1, help="Timed runs of each finalist; default: 30.")
]
_OutOption = Annotated[
    Path | None,
    typer.Option(help="The table; default: yours for this GPU (FLASHSMITH_TUNED)."),
]
_ForceOption = Annotated[
    bool, typer.Option("--force", help="Discard what the table, or an interrupted run, has.")
]
_AgainOption = Annotated[
    bool,
    typer.Option(
        "--again",
        help="Measure all shapes and kernels of the table anew, or of the shipped one, and no "
        "others: after an update of flashsmith or of the driver.",
    ),
]
_ExplainOption = Annotated[
    bool, typer.Option("--explain", help="Measure nothing: show what is chosen now, and why.")
]
_GpuOption = Annotated[
    str | None,
    typer.Option(help='With --explain: the GPU, like "NVIDIA H200"; default: this one.'),
]
_OperationOption = Annotated[
    str,
    typer.Option(
        "--operation",
        help="forward, backward or decode. The kernels of decode have shapes of their own: --dtype "
        "and --d-head say which.",
    ),
]
_EmulatorCountsOption = Annotated[
    bool,
    typer.Option(
        "--emulator-counts",
        help="Without a GPU: rank by what the emulator counts. No times; nothing is kept.",
    ),
]


def tune(
    context: typer.Context,
    d_heads: DHeadsOption = "128,64",
    dtypes: DtypesOption = "fp16,bf16",
    masks: MasksOption = "full,causal",
    grid: _GridOption = None,
    seq_lens: _SeqLensOption = None,
    tokens: TokensOption = None,
    hidden: HiddenOption = None,
    batch: BatchOption = None,
    heads: HeadsOption = None,
    kernels: _TuneKernelsOption = None,
    repeats: _RepeatsOption = None,
    out: _OutOption = None,
    force: _ForceOption = False,
    again: _AgainOption = False,
    explain: _ExplainOption = False,
    gpu: _GpuOption = None,
    emulator_counts: _EmulatorCountsOption = False,
    operation: _OperationOption = "forward",
    as_json: JsonOption = False,
) -> None:
    """Find the fastest kernel for each shape on this GPU, and keep it in a table.

    Candidates are built together and checked against a reference. Correct ones are timed in three
    rounds: all of them a few times, the fastest third more often, then the fastest third of these.
    The rest is soaked (`flashsmith soak`): only kernels that are right at all tile boundaries enter
    the table. For each d_head and mask at most eight kernels are chosen, so that few have to be
    built. `attention` then takes the fastest of these for all problems of a bucket: a range of
    lengths of k (up to 512, 1024, and so on to 16384 and beyond) and a range of rows an SM.

    Each operation has a separate table. Each shape of the backward is tuned with and without
    deterministic gradients; for decode the fastest kernel over all lengths is found for each kind
    of cache and number of rows, and for few and many work tiles.

    The same command continues an interrupted run. A table of another GPU or driver, or of other
    kernel sources, is refused; `--again` measures its kernels anew, in a fraction of the time.
    """
    request = make_request(
        kernels=kernels,
        d_heads=d_heads,
        dtypes=dtypes,
        masks=masks,
        seq_lens=seq_lens,
        tokens=tokens,
        hidden=hidden,
        batch=batch,
        heads=heads,
        grids=grid,
    )
    operations = {each.name: each for each in OPERATIONS}
    if operation not in operations:
        raise ValueError(f"--operation is {operation!r}; supported: {', '.join(operations)}")
    of_forward: dict[str, object] = {"--kernels": kernels, "--emulator-counts": emulator_counts}
    if operation == "decode":
        sizes = {"--grid": grid, "--seq-len": seq_lens, "--tokens": tokens, "--hidden": hidden}
        others = {"--batch": batch, "--heads": heads}
        _refuse("decode has shapes and kernels of its own", {**sizes, **others, **of_forward})
    elif operation == "backward":
        _refuse("these are for the forward alone", of_forward)
    kept: dict[str, object] = {"--repeats": repeats, "--out": out, "--force": force}
    if explain:
        given = {"--kernels": kernels, **kept, "--emulator-counts": emulator_counts}
        _refuse("--explain measures nothing", given)
    else:
        _refuse("without --explain this GPU is the one", {"--gpu": gpu})
    if emulator_counts:
        _refuse("--emulator-counts keeps and times nothing", {**kept, "--grid": grid})
    if again:
        _refuse("--again measures what the table has", _given(context))
    chosen = operations[operation]
    if explain:
        from flashsmith.cli.explanations import print_explained  # slow, though without torch
        from flashsmith.lab.commands.explanation import explain_all

        print_explained(explain_all(chosen, request, gpu), as_json)
        return
    from flashsmith.cli import tune_table  # they load torch
    from flashsmith.lab.commands import tune as lab

    if again:
        tuned = lab.measure_again(chosen, out, ON_STDERR, repeats=repeats)
        tune_table.print_tuned(tuned, as_json)
    elif emulator_counts:
        tune_table.print_counts(lab.count(request, ON_STDERR), as_json)
    else:
        tuned = lab.measure(chosen, request, out, ON_STDERR, repeats=repeats, fresh=force)
        tune_table.print_tuned(tuned, as_json)


def _given(context: typer.Context) -> dict[str, object]:
    """Returns the options on the command line that `--again` does not take."""
    taken = ("again", "operation", "repeats", "out", "as_json")
    return {
        max(each.opts, key=len): True
        for each in context.command.params
        if each.name not in taken
        and (source := context.get_parameter_source(each.name or ""))
        and source.name == "COMMANDLINE"
    }


def _refuse(why: str, options: dict[str, object]) -> None:
    if given := [name for name, value in options.items() if value]:
        raise ValueError(f"{why}; leave out {', '.join(given)}")
