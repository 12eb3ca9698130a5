"""`flashsmith build`: kernels -> modules in the cache."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from flashsmith.cli.built import built_rows, print_built
from flashsmith.cli.options import JsonOption, KernelsOption, make_request, split_words
from flashsmith.cli.tables import Stopwatch, note, print_json
from flashsmith.configs import KernelId
from flashsmith.jit import (
    COMPILE_COMMANDS,
    KernelCache,
    Module,
    Target,
    build_kernels,
    compile_commands,
    default_jobs,
    show_progress,
    why_not_linted,
)
from flashsmith.lab.commands.build import choose_target, plan_for_attention
from flashsmith.lab.commands.files import check_output, write_whole

_TargetOption = Annotated[
    str | None,
    typer.Option(metavar="cuda|emulator", help="Default: cuda if there is an nvcc."),
]
_ArchOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Architectures of the cuda target, like sm_80,sm_90a. Default: FLASHSMITH_ARCH, "
        "else those of the GPUs found, else sm_80,sm_90a."
    ),
]
_GpuOption = Annotated[
    str | None,
    typer.Option(help='GPUs to compile for by name, in place of --arch, like "NVIDIA H200".'),
]
_ForAttentionOption = Annotated[
    bool,
    typer.Option(
        "--for-attention",
        help="In place of --kernels: all that attention() takes on this GPU, or on those of "
        "--gpu or --arch. FLASHSMITH_BUILD=0 then finds every kernel built.",
    ),
]
_MasksOption = Annotated[
    str | None,
    typer.Option("--mask", help="full, causal or full,causal. Default: full; attention's all."),
]
_DtypesOption = Annotated[
    str | None,
    typer.Option("--dtype", help="fp16, bf16 or fp16,bf16. Default: all that the set has."),
]
_DHeadsOption = Annotated[
    str | None,
    typer.Option("--d-head", help="Head dimensions, by commas. Default: all that the set has."),
]
_JobsOption = Annotated[
    int | None, typer.Option(min=1, help="Compilers at a time; default: FLASHSMITH_JOBS.")
]
_ForceOption = Annotated[bool, typer.Option("--force", help="Compile again what is cached.")]
_OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Build into this folder in place of the cache, with the host library: for images and "
        "clusters, where FLASHSMITH_SHARED_CACHE names it.",
    ),
]
_EditorFolderOption = Annotated[
    Path | None,
    typer.Option(
        "--compile-commands",
        metavar="FOLDER",
        help="Write compile_commands.json into this folder, for clangd and other editors. The "
        "target is then the emulator, unless one is named: its commands are plain C++.",
    ),
]


def build(
    target: _TargetOption = None,
    arch: _ArchOption = None,
    gpu: _GpuOption = None,
    kernels: KernelsOption = None,
    for_attention: _ForAttentionOption = False,
    masks: _MasksOption = None,
    dtypes: _DtypesOption = None,
    d_heads: _DHeadsOption = None,
    jobs: _JobsOption = None,
    force: _ForceOption = False,
    out: _OutOption = None,
    editor_folder: _EditorFolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build kernels; show the registers, spills and shared memory of each."""
    if for_attention and kernels:
        raise ValueError("--for-attention says which kernels; leave out --kernels")
    masks = masks or ("full,causal" if for_attention else "full")
    request = make_request(kernels=kernels, masks=masks, dtypes=dtypes, d_heads=d_heads)
    if editor_folder is not None:
        check_output("--compile-commands", editor_folder / COMPILE_COMMANDS, force=True)
        target = target or (None if arch or gpu else "emulator")
    gpus = [] if gpu is None else split_words(gpu)
    if for_attention:
        chosen = choose_target(target, arch or [], gpus, note)
        plan = plan_for_attention(request, chosen, gpus)
    else:
        instances = request.instances(forward_only=False)
        plan = {choose_target(target, arch or [], gpus, note): instances}
    jobs = jobs or default_jobs()
    cache = KernelCache(out)
    if out is not None:
        cache.require_for_products()
    watch = Stopwatch()
    modules: list[Module] = []
    for chosen, wanted in plan.items():
        note(f"{len(wanted)} kernels for {chosen.name}, {jobs} compilers at a time")
        with show_progress() as progress:
            modules += build_kernels(
                *(wanted, chosen),
                jobs=jobs,
                progress=progress,
                force=force,
                cache=None if out is None else cache,
            )
    if out is not None:
        cache.keep_only_products()
    rows, not_linted = built_rows(modules), why_not_linted(modules)
    if editor_folder is not None:
        write_compile_commands(editor_folder, plan)
    if as_json:
        print_json(
            {
                "target": next(iter(plan)).kind,
                "archs": [arch for chosen in plan for arch in chosen.archs],
                "cache": cache.root,
                "seconds": watch.seconds,
                "not_linted": not_linted,
                "kernels": rows,
            }
        )
        return
    print_built(rows)
    for reason, count in not_linted.items():
        note(f"the machine code of {count} kernels was not linted: {reason}; then build --force")
    note(f"{watch.seconds} s; in {cache.root}")


def write_compile_commands(folder: Path, built: Mapping[Target, Iterable[KernelId]]) -> None:
    """Writes the commands that compiled these kernels and the host library into ``folder``."""
    entries = [
        entry for target, wanted in built.items() for entry in compile_commands(wanted, target)
    ]
    path = folder / COMPILE_COMMANDS
    write_whole(path, lambda staged: staged.write_text(f"{json.dumps(entries, indent=1)}\n"))
    note(f"{path}: the commands of {len(entries)} files")
