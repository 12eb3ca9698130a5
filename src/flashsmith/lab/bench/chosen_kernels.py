"""The kernels that attention and its gradients choose for cases: they are built side by side before
the first case is measured, where each case would wait for its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import torch

from flashsmith.configs import KernelId, Workload
from flashsmith.configs.base import Capability
from flashsmith.configs.registry import BACKWARD
from flashsmith.configs.workload import BackwardWorkload
from flashsmith.errors import FlashsmithError
from flashsmith.jit import build_kernels
from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.operations.base import OURS
from flashsmith.runtime.device import target_of
from flashsmith.selection.choose import choose, choose_for
from flashsmith.selection.select import gpu_of


def build_chosen(cases: Iterable[Case]) -> None:
    """Builds the kernels that cases choose on this GPU. What cannot be chosen or built fails again,
    with its reason, when its case is measured."""
    device, start = torch.device("cuda"), time.monotonic()
    with suppress(FlashsmithError):
        kernels = chosen_kernels(cases, *gpu_of(device))
        if not kernels:
            return
        build_kernels(kernels, target_of(device))
        seconds = time.monotonic() - start
        print(f"{seconds:.1f} s: {len(kernels)} kernels built", file=sys.stderr, flush=True)


def chosen_kernels(
    cases: Iterable[Case], gpu: str | None, capability: Capability | None = None
) -> list[KernelId]:
    """Returns the kernels of our own candidates for plain cases of the forward and the backward on
    a GPU, sorted. Sequences of unlike lengths may have another backward, so both are there.

    Args:
        gpu: The GPU's name; None: a CPU, on the emulator.
        capability: The GPU's compute capability; None: derived from its name.
    """
    found: set[KernelId] = set()
    for case in cases:
        if case.score == "plain" and OURS in case.candidates:
            with suppress(ValueError):  # the case refuses it, too, and says so
                found |= {*_kernels_of(case, gpu, capability)}
    return sorted(found)


def _kernels_of(case: Case, gpu: str | None, capability: Capability | None) -> Iterator[KernelId]:
    if case.operation not in ("forward", "backward"):
        return
    packed, windowed = bool(case.lengths), case.window > 0
    variant = replace(case.workload.variant, varlen=packed, window=windowed)
    workload = Workload(case.workload.problem, variant)
    forward = choose(workload, gpu, capability)
    yield KernelId(forward.config, forward.kernel_variant(variant))
    if case.operation == "backward":
        for unlike in {False, packed}:
            asked = BackwardWorkload(workload.problem, variant, unlike=unlike)
            yield KernelId(choose_for(BACKWARD, asked, gpu, capability).config, variant)
