"""Decides which kernels and architectures a build is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from flashsmith import settings
from flashsmith.configs import KernelId
from flashsmith.errors import ToolchainError
from flashsmith.gpus import get_gpu_architecture
from flashsmith.jit import Target, find_cuda_toolkit
from flashsmith.lab.commands.driver import arch_name, find_gpus
from flashsmith.lab.commands.request import Request
from flashsmith.selection.served import gpus_with_tables, served_instances

Note = Callable[[str], None]


def plan_for_attention(
    request: Request, target: Target, gpus: Sequence[str]
) -> dict[Target, list[KernelId]]:
    """Returns the kernels that attention() may choose, for each architecture's library.

    Each architecture has its own list, because a family does not run on all of them.

    Args:
        request: Gives the variants, dtypes and d_heads.
        target: The emulator, or the architectures.
        gpus: Names of GPUs. If empty, this machine's GPUs of each architecture, or if it has none,
            all GPUs of that architecture that have tables.

    Raises:
        ValueError: attention() has no kernel for the request on one of the architectures.
    """
    plan = {}
    for arch in target.archs or (None,):
        found = set()
        for name, (dtype, d_head) in product(_names_of(arch, gpus), request.kinds):
            chosen: dict[str, Any] = {"variants": request.variants}
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
    """Returns the GPU names whose tables are looked up for an architecture, then its own name."""
    if arch is None:
        return [None]
    here = gpus or [gpu.name for gpu in find_gpus()[0] if gpu.arch == arch]
    return [*(here or gpus_with_tables(arch)), arch]


def arch_of(gpu: str) -> str:
    """Returns the architecture to compile for on a named GPU. Raises ValueError if unknown."""
    return arch_name(get_gpu_architecture(gpu).compute_capability)


def choose_target(
    kind: str | None, archs: Sequence[str], gpus: Sequence[str], note: Note
) -> Target:
    """Returns the target of the options; finds what they leave open, and notes what it found."""
    if gpus and archs:
        raise ValueError("--gpu stands in place of --arch; leave out one of them")
    archs = archs or [arch_of(gpu) for gpu in gpus]
    if kind is None:
        kind = "cuda" if archs else _default_kind(note)
    if kind == "cuda" and not archs:
        archs = _default_archs(note)
    return Target.parse(kind, archs)


def _default_kind(note: Note) -> str:
    try:
        nvcc = find_cuda_toolkit().nvcc
    except ToolchainError:
        note("target emulator, as there is no usable nvcc (`flashsmith doctor` says more)")
        return "emulator"
    note(f"target cuda, as there is nvcc {nvcc.version}: {nvcc.path}, by {nvcc.found_by}")
    return "cuda"


def _default_archs(note: Note) -> list[str]:
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
