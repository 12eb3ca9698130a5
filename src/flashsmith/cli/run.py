"""`flashsmith run`: kernels on a user's tensors or on random ones, checked and measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from flashsmith.cli.options import (
    MAX_SEED,
    DeviceOption,
    DHeadOption,
    DtypeOption,
    JsonOption,
    KernelsOption,
    MaskOption,
    make_request,
    split_words,
)
from flashsmith.cli.tables import ON_STDERR, note, print_json, print_table
from flashsmith.configs import VARIANTS
from flashsmith.lab.commands.files import check_output

if TYPE_CHECKING:
    from flashsmith.lab.commands.run import Files, RunReport
    from flashsmith.lab.commands.run_call import Asked
    from flashsmith.lab.commands.run_result import Result

_WRONG = 1  # exit code


def run(
    kernels: KernelsOption = None,
    input: Annotated[  # noqa: A002
        Path | None, typer.Option(help="A safetensors file with tensors q, k and v.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write tensor o, as safetensors; a new file, or --force."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite an existing file of --out.")
    ] = False,
    batch: Annotated[int | None, typer.Option(min=1, help="Default: 4, emulator 1.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Default: 16, emulator 2.")] = None,
    seq_len: Annotated[int | None, typer.Option(min=1, help="Default: 4096, emulator 256.")] = None,
    dtype: DtypeOption = None,
    d_head: DHeadOption = None,
    mask: MaskOption = "full",
    window: Annotated[
        str | None,
        typer.Option(
            metavar="LEFT,RIGHT",
            help="A query sees so many keys behind and ahead of its diagonal; -1: all.",
        ),
    ] = None,
    softcap: Annotated[
        float, typer.Option(help="A score s becomes softcap * tanh(s / softcap); 0: it stays.")
    ] = 0.0,
    scale: Annotated[
        float | None, typer.Option(help="Factor on q k^T. Default: 1 / sqrt(d_head).")
    ] = None,
    lse: Annotated[
        bool, typer.Option("--lse", help="Also compute the log-sum-exp, and write tensor lse.")
    ] = False,
    dropout: Annotated[
        float, typer.Option(help="The share of weights that are dropped, by --seed; 0: none.")
    ] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option(
            min=-MAX_SEED,
            max=MAX_SEED,
            help="Draws the random input, and the weights of --dropout; default: 0.",
        ),
    ] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run kernels, check each against a float64 reference, and time it (GPU) or count (emulator).

    Input: tensors q, k and v, (batch, seq_len, n_heads, d_head), from a file, or random ones. In a
    file, the lengths of k and v may differ from q's, and k and v may have fewer heads, which heads
    of q share. d_head and d_v may differ; each is a multiple of 8 up to 256. q and k, or all three,
    may be float8_e4m3fn, with scales in tensors q_scale, k_scale and v_scale. NaN and inf in
    tensors are counted and reported; o must have them where the reference does.

    Kernels: by default KERNELS, else the progression (on compute capability 9.0 the sm90 family's);
    with a file the kernel chosen for its shape; with --out always that kernel.

    Exit code 1 if a result is wrong; then no output is written.
    """
    sizes = {"dtype": dtype, "d_head": d_head, "batch": batch, "heads": heads, "seq_len": seq_len}
    if input is not None:
        _refuse_with_input({**sizes, "seed": None if dropout else seed})
    request = make_request(kernels=kernels, mask=mask, device=device, **sizes)  # type: ignore[arg-type]
    (variant,) = request.variants
    if variant not in VARIANTS:
        raise ValueError(
            f"--mask is {mask!r}; `run` takes full and causal, and --window LEFT,RIGHT, --softcap "
            "and --dropout beside them"
        )
    if out is not None:
        check_output("--out", out, force=force, input_file=input)
        if not kernels:  # KERNELS is a set, but o is the result of one kernel
            request = replace(request, words=())
    from flashsmith.lab.commands import run as lab  # it loads torch
    from flashsmith.lab.commands.run_call import Asked

    files = lab.Files(input, out, seed or 0)
    asked = Asked(variant.causal, _parse_window(window), softcap, scale, lse, dropout, seed or 0)
    report = lab.run(request, files, asked, ON_STDERR)
    _report(report, files, asked, as_json)
    if not report.ok:
        raise typer.Exit(_WRONG)


def _parse_window(text: str | None) -> tuple[int, int]:
    """Returns the sides of a window, (-1, -1) for none. Raises ValueError: The text names no
    window."""
    words = ["-1", "-1"] if text is None else split_words(text)
    try:
        left, right = (int(word) for word in words)
    except ValueError:
        raise ValueError(
            f"--window is {text!r}; expected two whole numbers, LEFT,RIGHT, like 127,0; -1 is all"
        ) from None
    return left, right


def _refuse_with_input(options: dict[str, object]) -> None:
    if given := [name for name, value in options.items() if value is not None]:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"--input brings its own tensors; leave out {names}")


def _report(report: RunReport, files: Files, asked: Asked, as_json: bool) -> None:
    written = files.output if report.ok else None
    problem = report.workload.problem
    of_k = (None, None) if problem.is_square else (problem.seq_len_k, problem.heads_kv)
    options = {
        "window": None if asked.window_size == (-1, -1) else list(asked.window_size),
        "softcap": asked.softcap or None, "scale": asked.softmax_scale,
        "dropout": asked.dropout_p or None,
    }  # fmt: skip
    described = {
        "batch": problem.batch, "seq_len": problem.seq_len_q, "n_heads": problem.heads,
        "d_head": problem.d_head, "seq_len_k": of_k[0], "n_heads_kv": of_k[1],
        "dtype": str(problem.dtype), "causal": report.workload.variant.causal,
        "d_v": None if problem.d_v == problem.d_head else problem.d_v, **options,
        "input": files.input,
        "seed": None if files.input and not asked.dropout_p else files.seed,
    }  # fmt: skip
    if as_json:
        print_json(
            {
                "device": report.device,
                "problem": described,
                "kernels": [result.as_dict() for result in report.results],
                "fa2_ms": report.fa2_ms,
                "not_finite": report.not_finite,
                "ok": report.ok,
                "output": written,
            }
        )
    else:
        note(", ".join(f"{name} {value}" for name, value in described.items() if value is not None))
        _print_results(report.results, report.device == "cuda")
        if report.fa2_ms is not None:
            note(f"FA2 (torch SDPA, flash backend): {report.fa2_ms:.4g} ms")
    if report.not_finite:
        note(_say_not_finite(report.not_finite))
    for result in report.results:
        if not result.ok:
            note(f"wrong: {result.kernel}: {result.worst}")
    if files.output is not None:
        note(f"o is in {written}" if written else f"{files.output} is not written")


def _say_not_finite(counts: dict[str, dict[str, int]]) -> str:
    """Returns a line like `q has 128 NaN, o has 128 NaN; errors are of what is finite in o,
    ...`."""
    words = {"nan": "NaN", "inf": "inf"}
    has = ", ".join(
        f"{name} has " + " and ".join(f"{n} {words[kind]}" for kind, n in found.items() if n)
        for name, found in counts.items()
    )
    return f"{has}; NaN and inf in o are compared by their places, the rest by its error"


def _print_results(results: list[Result], on_gpu: bool) -> None:
    rows = [
        {
            "kernel": result.kernel,
            "error": result.error,
            "tolerance": result.tolerance,
            "": Text("ok", "green") if result.ok else Text("WRONG", "bold red"),
            **(_times(result) if on_gpu else {}),
        }
        for result in results
    ]
    # The counts cover the whole launch; on a GPU there are none.
    from flashsmith.runtime.counters import explain_headings, table_of  # runtime loads torch

    headings, counts = table_of([result.counts for result in results])
    cells = [[*row.values(), *found] for row, found in zip(rows, counts, strict=True)]
    print_table([*rows[0], *headings], cells)
    if headings:
        note(f"counted: {explain_headings(headings)}")


def _times(result: Result) -> dict[str, Any]:
    return {"ms": result.ms, "TFLOP/s": result.tflops, "% of FA2": result.fa2_percent}
