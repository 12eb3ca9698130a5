"""`flashsmith build`: kernels -> one library in the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any

import typer

from flashsmith import settings
from flashsmith.cli.built import built_rows, print_built
from flashsmith.cli.gpus import arch_name, find_gpus
from flashsmith.cli.selection import (
    kernel_words,
    parse_d_heads,
    parse_dtypes,
    parse_masks,
    select_instances,
    split_words,
)
from flashsmith.cli.tables import (
    JsonOption,
    KernelsOption,
    Stopwatch,
    build_progress,
    note,
    print_json,
)
from flashsmith.configs import DType, ForwardKernelInstance, ForwardVariant
from flashsmith.errors import ToolchainError
from flashsmith.gpus import get_gpu_architecture
from flashsmith.jit import Target, build_library, default_jobs, find_cuda_toolkit


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
    gpu: Annotated[
        str | None,
        typer.Option(help='GPUs to compile for by name, in place of --arch, like "NVIDIA H200".'),
    ] = None,
    kernels: KernelsOption = None,
    for_attention: Annotated[
        bool,
        typer.Option(
            "--for-attention",
            help="In place of --kernels: all that attention() takes on this GPU, or on those of "
            "--gpu or --arch. FLASHSMITH_BUILD=0 then finds every kernel built.",
        ),
    ] = False,
    masks: Annotated[
        str | None,
        typer.Option("--mask", help="full, causal or full,causal. Default: full; attention's all."),
    ] = None,
    dtypes: Annotated[
        str | None,
        typer.Option("--dtype", help="fp16, bf16 or fp16,bf16. Default: all that the set has."),
    ] = None,
    d_heads: Annotated[
        str | None,
        typer.Option("--d-head", help="Head dimensions, by commas. Default: all that the set has."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Compilers at a time; default: FLASHSMITH_JOBS.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compile again what is cached.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Build kernels into a library; show the registers, spills and shared memory of each."""
    if for_attention and kernels:
        raise ValueError("--for-attention says which kernels; leave out --kernels")
    variants = parse_masks(masks or ("full,causal" if for_attention else "full"))
    kinds = list(product(parse_dtypes(dtypes), parse_d_heads(d_heads)))
    gpus = [] if gpu is None else split_words(gpu)
    if for_attention:
        plan = plan_for_attention(choose_target(target, arch or [], gpus), gpus, variants, kinds)
    else:
        words = kernel_words(kernels, "all")
        instances = [each for kind in kinds for each in select_instances(words, variants, *kind)]
        plan = {choose_target(target, arch or [], gpus): list(dict.fromkeys(instances))}
    jobs = jobs or default_jobs()
    watch = Stopwatch()
    libraries, rows = [], []
    not_linted: Counter[str] = Counter()  # reason -> kernels
    for chosen, wanted in plan.items():
        note(f"{len(wanted)} kernels for {chosen.name}, {jobs} compilers at a time")
        with build_progress() as progress:
            library = build_library(wanted, chosen, jobs=jobs, progress=progress, force=force)
        libraries.append(library.path)
        not_linted.update(library.not_linted)
        # A cached library may have more than was asked for.
        names = {instance.name for instance in wanted}
        rows += [row for row in built_rows(library) if row["kernel"] in names]
    if as_json:
        print_json(
            {
                "target": next(iter(plan)).kind,
                "archs": [arch for chosen in plan for arch in chosen.archs],
                "libraries": libraries,
                "seconds": watch.seconds,
                "not_linted": not_linted,
                "kernels": rows,
            }
        )
        return
    print_built(rows)
    for reason, count in not_linted.items():
        note(f"the machine code of {count} kernels was not linted: {reason}; then build --force")
    note(f"{watch.seconds} s; in {', '.join(map(str, libraries))}")


def plan_for_attention(
    target: Target,
    gpus: Sequence[str],
    variants: Sequence[ForwardVariant],
    kinds: Sequence[tuple[DType | None, int | None]],
) -> dict[Target, list[ForwardKernelInstance]]:
    """What attention() takes, a library for each architecture: a family runs on some of them.

    Args:
        target: The emulator, or the architectures.
        gpus: Names of the GPUs; where none is of an architecture, those of this machine, else all
            that there are tables for.
        kinds: Pairs of dtype and d_head; None for all.

    Raises:
        ValueError: attention() takes no kernel of these kinds somewhere.
    """
    from flashsmith.selection import served_instances  # it loads torch

    plan = {}
    for arch in target.archs or (None,):
        found = set()
        for name, (dtype, d_head) in product(_names_of(arch, gpus), kinds):
            chosen: dict[str, Any] = {"variants": variants}
            chosen |= {} if dtype is None else {"dtypes": [dtype]}
            chosen |= {} if d_head is None else {"d_heads": [d_head]}
            capability = None if arch is None else get_gpu_architecture(arch).compute_capability
            found |= set(served_instances(name, capability=capability, **chosen))
        if not found:
            raise ValueError(
                f"attention() takes no kernel of these on {arch}; choose other --d-head"
            )
        plan[target if arch is None else Target.cuda(arch)] = sorted(found)
    return plan


def _names_of(arch: str | None, gpus: Sequence[str]) -> list[str | None]:
    """The GPUs of an architecture to look up tables for, and the architecture itself."""
    from flashsmith.selection import gpus_with_tables

    if arch is None:
        return [None]
    here = gpus or [gpu.name for gpu in find_gpus()[0] if gpu.arch == arch]
    return [*(here or gpus_with_tables(arch)), arch]


def arch_of(gpu: str) -> str:
    """What to compile for a GPU of this name. Raises ValueError if none is known."""
    return arch_name(get_gpu_architecture(gpu).compute_capability)


def choose_target(kind: str | None, archs: list[str], gpus: Sequence[str] = ()) -> Target:
    """The target as asked; what was not asked is found here, and said on stderr."""
    if gpus and archs:
        raise ValueError("--gpu stands in place of --arch; leave out one of them")
    archs = archs or [arch_of(gpu) for gpu in gpus]
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
