"""`flashsmith run`: kernels on a user's tensors or on random ones, checked and measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from flashsmith import settings
from flashsmith.cli.files import check_output
from flashsmith.cli.selection import check_d_head, parse_dtype, select_instances
from flashsmith.cli.tables import (
    DeviceOption,
    DHeadOption,
    DtypeOption,
    JsonOption,
    KernelsOption,
    MaskOption,
    build_progress,
    note,
    print_json,
    print_table,
)
from flashsmith.configs import DType, ForwardKernelInstance, ForwardVariant
from flashsmith.configs.families import families_on

if TYPE_CHECKING:
    from flashsmith.cli.job import Result
    from flashsmith.cli.tensors import Inputs

_DEFAULT_D_HEAD = 128
_WRONG = 1  # exit code


@dataclass(frozen=True)
class _Request:
    """The options of the command; None where one was not given."""

    kernels: list[str] | None
    variant: ForwardVariant
    dtype: DType | None
    d_head: int | None
    batch: int | None
    heads: int | None
    seq_len: int | None
    seed: int | None
    input: Path | None
    output: Path | None

    def __post_init__(self) -> None:
        if self.input is None:
            return
        names = ("dtype", "d_head", "batch", "heads", "seq_len", "seed")
        if given := [name for name in names if getattr(self, name) is not None]:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ValueError(f"--input brings its own tensors; leave out {options}")


def run(
    kernels: KernelsOption = None,
    input: Annotated[  # noqa: A002
        Path | None, typer.Option(help="A safetensors file with tensors q, k and v.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Where to write tensor o, as safetensors; a new file, or --force."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite an existing file of --output.")
    ] = False,
    batch: Annotated[int | None, typer.Option(min=1, help="Default: 4, emulator 1.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Default: 16, emulator 2.")] = None,
    seq_len: Annotated[int | None, typer.Option(min=1, help="Default: 4096, emulator 256.")] = None,
    dtype: DtypeOption = None,
    d_head: DHeadOption = None,
    mask: MaskOption = "full",
    seed: Annotated[int | None, typer.Option(help="Of the random input; default: 0.")] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run kernels, check each against a float64 reference, and time it (GPU) or count (emulator).

    Input: tensors q, k and v, (batch, seq_len, n_heads, d_head), from a file, or random ones. In a
    file k and v may have other lengths than q, and fewer heads, which heads of q then share.

    Kernels: by default KERNELS, else the progression (on compute capability 9.0 that of the sm90
    family), with a file the one picked for its shape; with --output always that one.

    Exit code 1 if a result is wrong; then no output is written.
    """
    request = _Request(
        kernels, ForwardVariant.from_name(mask), parse_dtype(dtype), check_d_head(d_head),
        batch, heads, seq_len, seed, input, output,
    )  # fmt: skip
    if output is not None:
        check_output("--output", output, force=force, input_file=input)
    from flashsmith.cli import job, tensors  # they load torch

    where, why = job.choose_device(device)
    inputs, instances = _prepare(request, on_gpu=where == "cuda")
    note(f"on {'the GPU' if where == 'cuda' else 'the emulator'}: {why}")
    with build_progress() as progress:
        job.load_kernels(instances, where, progress)
    inputs = inputs.to(where)
    results, o = job.run_kernels(instances, inputs)
    fa2_ms = job.time_kernels(instances, inputs, results) if where == "cuda" else None
    right = all(result.ok for result in results)
    if output is not None and right:
        tensors.save_output(output, o)
    _report(request, inputs, results, fa2_ms, as_json)
    if not right:
        raise typer.Exit(_WRONG)


def _prepare(request: _Request, on_gpu: bool) -> tuple[Inputs, list[ForwardKernelInstance]]:
    """The tensors and the kernels, which fit each other."""
    import torch

    from flashsmith.cli import job, tensors
    from flashsmith.selection import select_config

    words = request.kernels or []
    chosen = settings.KERNELS.get()
    if not words and request.output is None:  # --output takes the result of one kernel
        capability = torch.cuda.get_device_capability() if on_gpu else None
        default = families_on(capability)[0].progression_set
        words = [chosen or default] if chosen or request.input is None else []
    dtype, d_head = request.dtype, request.d_head
    inputs = None
    if request.input is not None:
        inputs = tensors.load_inputs(request.input)
        dtype, d_head = inputs.dtype, inputs.d_head
    instances = select_instances(words, [request.variant], dtype, d_head)
    _check_variants(instances, request)
    if inputs is None:
        batch, heads, seq_len = (4, 16, 4096) if on_gpu else (1, 2, 256)
        dtype, d_head = _agreed(instances, dtype, d_head)
        shape = (request.batch or batch, request.seq_len or seq_len, request.heads or heads, d_head)
        inputs = tensors.random_inputs(shape, dtype, request.seed or 0)
    if not instances:
        device = torch.device("cuda" if on_gpu else "cpu")
        config = select_config(inputs.q, request.variant.causal, device, k=inputs.k)
        instances = [ForwardKernelInstance(config, request.variant)]
    job.check_fit(instances, inputs.k.shape[1], plain=inputs.plain)
    return inputs, instances


def _check_variants(instances: list[ForwardKernelInstance], request: _Request) -> None:
    if request.output is not None and len(instances) > 1:
        raise ValueError(
            f"--output takes the result of one kernel, and {len(instances)} are chosen; name one "
            "with --kernels"
        )
    for instance in instances:
        if instance.variant != request.variant:
            raise ValueError(f"kernel {instance} is causal; add --mask causal")


def _agreed(
    instances: list[ForwardKernelInstance], dtype: DType | None, d_head: int | None
) -> tuple[DType, int]:
    """The dtype and d_head of the kernels; where there are none yet, as asked or the default."""
    found = sorted({(instance.config.dtype, instance.config.d_head) for instance in instances})
    if len(found) > 1:
        kinds = "; ".join(f"{dtype}, d_head {d_head}" for dtype, d_head in found)
        raise ValueError(f"the kernels are for {kinds}: choose by --dtype or --d-head")
    return found[0] if found else (dtype or DType.FP16, d_head or _DEFAULT_D_HEAD)


def _report(
    request: _Request, inputs: Inputs, results: list[Result], fa2_ms: float | None, as_json: bool
) -> None:
    wrong = [result for result in results if not result.ok]
    written = request.output if not wrong else None
    batch, seq_len, n_heads, d_head = inputs.q.shape
    seq_len_k, n_heads_kv = (None, None) if inputs.plain else inputs.k.shape[1:3]
    problem = {
        "batch": batch, "seq_len": seq_len, "n_heads": n_heads, "d_head": d_head,
        "seq_len_k": seq_len_k, "n_heads_kv": n_heads_kv,
        "dtype": str(inputs.dtype), "causal": request.variant.causal,
        "input": request.input, "seed": None if request.input else request.seed or 0,
    }  # fmt: skip
    if as_json:
        print_json(
            {
                "device": inputs.q.device.type,
                "problem": problem,
                "kernels": [result.as_dict() for result in results],
                "fa2_ms": fa2_ms,
                "ok": not wrong,
                "output": written,
            }
        )
    else:
        note(", ".join(f"{name} {value}" for name, value in problem.items() if value is not None))
        _print_results(results, inputs.q.is_cuda)
        if fa2_ms is not None:
            note(f"FA2 (torch SDPA, flash backend): {fa2_ms:.4g} ms")
    for result in wrong:
        note(f"wrong: {result.kernel}: {result.worst}")
    if request.output is not None:
        note(f"o is in {written}" if written else f"{request.output} is not written")


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
    # Of the whole launch; a GPU counts nothing.
    from flashsmith.runtime.counters import explain_headings, table_of  # runtime loads torch

    headings, counts = table_of([result.counts for result in results])
    cells = [[*row.values(), *found] for row, found in zip(rows, counts, strict=True)]
    print_table([*rows[0], *headings], cells)
    if headings:
        note(f"counted: {explain_headings(headings)}")


def _times(result: Result) -> dict[str, Any]:
    return {"ms": result.ms, "TFLOP/s": result.tflops, "% of FA2": result.fa2_percent}
