"""`flashsmith build`: kernels -> one library in the cache."""

from __future__ import annotations

from typing import Annotated

import typer

from flashsmith import settings
from flashsmith.build import Target, build_library, default_jobs, find_cuda_toolkit
from flashsmith.cli.built import built_rows, print_built
from flashsmith.cli.gpus import find_gpus
from flashsmith.cli.selection import check_d_head, parse_dtype, select_instances
from flashsmith.cli.tables import (
    DHeadOption,
    DtypeOption,
    JsonOption,
    KernelsOption,
    Stopwatch,
    build_progress,
    note,
    print_json,
)
from flashsmith.configs import ForwardVariant
from flashsmith.errors import ToolchainError


def build(
    target: Annotated[
        str | None,
        typer.Option(metavar="cuda|emulator", help="Default: cuda if there is an nvcc."),
    ] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option(
            help="Architectures of the cuda target, like sm_80,sm_90a. Default: FLASHSMITH_ARCH, "
            "else those of the GPUs found, else sm_80,sm_90a."
        ),
    ] = None,
    kernels: KernelsOption = None,
    variants: Annotated[str, typer.Option(help="full, causal or full,causal.")] = "full",
    dtype: DtypeOption = None,
    d_head: DHeadOption = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Compilers at a time; default: FLASHSMITH_JOBS.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compile again what is cached.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Build kernels into one library; show the registers, spills and shared memory of each."""
    instances = select_instances(
        kernels or [settings.KERNELS.get() or "all"],
        [ForwardVariant.from_name(name.strip()) for name in variants.split(",")],
        parse_dtype(dtype),
        check_d_head(d_head),
    )
    chosen = choose_target(target, arch or [])
    jobs = jobs or default_jobs()
    note(f"{len(instances)} kernels for {chosen.name}, {jobs} compilers at a time")
    watch = Stopwatch()
    with build_progress() as progress:
        library = build_library(instances, chosen, jobs=jobs, progress=progress, force=force)
    rows = built_rows(library)
    if as_json:
        print_json(
            {
                "target": chosen.kind,
                "archs": chosen.archs,
                "library": library.path,
                "seconds": watch.seconds,
                "not_linted": library.not_linted,
                "kernels": rows,
            }
        )
        return
    print_built(rows)
    for reason, count in library.not_linted.items():
        note(f"the machine code of {count} kernels was not linted: {reason}; then build --force")
    note(f"{watch.seconds} s; the library is {library.path}")


def choose_target(kind: str | None, archs: list[str]) -> Target:
    """The target as asked; what was not asked is found here, and said on stderr."""
    if kind is None:
        kind = "cuda" if archs else _default_kind()
    if kind == "cuda" and not archs:
        archs = _default_archs()
    return Target.parse(kind, archs)


def _default_kind() -> str:
    try:
        nvcc = find_cuda_toolkit().nvcc
    except ToolchainError:
        note("target emulator, as there is no usable nvcc (`flashsmith doctor` says more)")
        return "emulator"
    note(f"target cuda, as there is nvcc {nvcc.version}: {nvcc.path}, by {nvcc.found_by}")
    return "cuda"


def _default_archs() -> list[str]:
    if chosen := settings.ARCH.get():
        note(f"architectures by FLASHSMITH_ARCH: {', '.join(chosen)}")
        return list(chosen)
    gpus, why_none = find_gpus()
    archs = sorted({gpu.arch for gpu in gpus if gpu.is_supported})
    if archs:
        note(f"architectures of the GPUs here: {', '.join(archs)}")
    else:
        note(f"default architectures, as {why_none or 'no GPU here is new enough'}")
    return archs
