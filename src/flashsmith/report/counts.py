"""What a kernel executes, counted on the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flashsmith import settings
from flashsmith.build import Progress, Target, build_library, find_library
from flashsmith.configs import ForwardKernelInstance
from flashsmith.configs.legality import MMA_K, MMA_M
from flashsmith.runtime import Kernel, emulation, find_kernel, load_library

_MMA_N = 8
SEQ_LENS = (256, 512)  # multiples of every B_r and B_c
_AVERAGED = ("longest_ldmatrix_run", "longest_mma_run")  # largest of all, not sums


@dataclass(frozen=True)
class Counts:
    """The emulator's counters (csrc/emulator/launch.h) of one head, split.

    whole: at a sequence of ``SEQ_LENS[0]``.
    per_visit: what one more visit of a thread block to a block of K and V costs.
    per_block: what a thread block costs beside its visits: loading Q, storing O.
    """

    whole: dict[str, int]
    per_visit: dict[str, float]
    per_block: dict[str, float]

    @property
    def wavefronts(self) -> float:
        return self.per_visit["shared_wavefronts"]

    @property
    def conflicts(self) -> float:
        """Wavefronts of a visit that are there because of bank conflicts."""
        return self.wavefronts - self.per_visit["shared_wavefronts_ideal"]


def n_blocks(instance: ForwardKernelInstance, seq_len: int) -> int:
    """Thread blocks of one head."""
    return seq_len // instance.config.B_r


def n_visits(instance: ForwardKernelInstance, seq_len: int) -> int:
    """Visits to a block of K and V by all thread blocks of one head."""
    B_r, B_c = instance.config.B_r, instance.config.B_c
    blocks = n_blocks(instance, seq_len)
    if not instance.variant.causal:
        return blocks * (seq_len // B_c)
    # Up to the last block of keys that the last row of the block of Q sees.
    return sum(-(-(block + 1) * B_r // B_c) for block in range(blocks))


def mma_per_visit(instance: ForwardKernelInstance) -> int:
    cfg = instance.config
    return 2 * cfg.B_r * cfg.B_c * cfg.d_head // (MMA_M * _MMA_N * MMA_K)


def load_emulated(instances: Sequence[ForwardKernelInstance], progress: Progress) -> list[Kernel]:
    """Has all kernels in one loaded library of the emulator.

    Raises:
        FlashsmithError: No library has them, and they cannot be built.
    """
    target = Target.emulator()
    library = find_library(instances, target)
    if library is None and settings.BUILD.get() is not False:
        library = build_library(instances, target, progress=progress)
    if library is not None:
        load_library(library, target)
    return [find_kernel(each, target) for each in instances]  # says it if building is off


def count(instance: ForwardKernelInstance) -> Counts:
    """Runs the kernel at two lengths, and splits what it counts into blocks and visits.

    Raises:
        EmulatorFault: The kernel broke a rule.
        FlashsmithError: It is in no library and cannot be built.
    """
    short, long = (_count_at(instance, seq_len) for seq_len in SEQ_LENS)
    (b1, v1), (b2, v2) = ((n_blocks(instance, s), n_visits(instance, s)) for s in SEQ_LENS)
    determinant = b1 * v2 - b2 * v1
    per_visit, per_block = {}, {}
    for name in short.keys() - set(_AVERAGED):
        per_visit[name] = (b1 * long[name] - b2 * short[name]) / determinant
        per_block[name] = (v2 * short[name] - v1 * long[name]) / determinant
    return Counts(short, per_visit, per_block)


def _count_at(instance: ForwardKernelInstance, seq_len: int) -> dict[str, int]:
    cfg = instance.config
    generator = torch.Generator().manual_seed(0)
    shape = (1, seq_len, 1, cfg.d_head)
    q, k, v = (
        torch.randn(shape, generator=generator).to(cfg.dtype.to_torch_dtype()) for _ in "qkv"
    )
    kernel = find_kernel(instance, Target.emulator())
    with emulation(kernel) as emulator:
        kernel(q, k, v, torch.empty_like(q), cfg.d_head**-0.5)
        return emulator.counters()
