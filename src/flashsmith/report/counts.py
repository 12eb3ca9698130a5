"""What a kernel executes, counted on the emulator."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flashsmith.configs import ForwardKernelInstance
from flashsmith.jit import Progress, Target
from flashsmith.report.families import family_of
from flashsmith.report.family import Counts, Sample
from flashsmith.runtime import Kernel, emulation, find_kernel, load_kernels
from flashsmith.runtime.workspace import workspace_for

_LARGEST = ("longest_ldmatrix_run", "longest_mma_run")  # largest of all, not sums


def load_emulated(instances: Sequence[ForwardKernelInstance], progress: Progress) -> list[Kernel]:
    """Has all kernels in one loaded library of the emulator.

    Raises:
        FlashsmithError: No library has them, and they cannot be built.
    """
    target = Target.emulator()
    load_kernels(instances, target, progress)
    return [find_kernel(each, target) for each in instances]  # says it if building is off


def count(instance: ForwardKernelInstance) -> Counts:
    """Runs the kernel on its family's two samples, and splits what it counts into tiles and visits.

    Raises:
        EmulatorFault: The kernel broke a rule.
        FlashsmithError: It is in no library and cannot be built.
    """
    family = family_of(instance.config)
    samples = family.samples(instance)
    short, long = (count_launch(instance, sample) for sample in samples)
    a, b = (sample.work for sample in samples)
    per_visit, per_tile = {}, {}
    for name in short.keys() - set(_LARGEST):
        n_a, n_b = (a.loads, b.loads) if name in family.per_load else (a.visits, b.visits)
        determinant = a.tiles * n_b - b.tiles * n_a
        per_visit[name] = (a.tiles * long[name] - b.tiles * short[name]) / determinant
        per_tile[name] = (n_b * short[name] - n_a * long[name]) / determinant
    return Counts(samples[0], short, per_visit, per_tile)


def count_launch(instance: ForwardKernelInstance, sample: Sample) -> dict[str, int]:
    """The emulator's counters for one launch on random tensors."""
    cfg = instance.config
    generator = torch.Generator().manual_seed(0)

    def random(seq_len: int) -> torch.Tensor:
        shape = (1, seq_len, 1, cfg.d_head)
        return torch.randn(shape, generator=generator).to(cfg.dtype.to_torch_dtype())

    q, k, v = (random(n) for n in (sample.seq_len_q, sample.seq_len_k, sample.seq_len_k))
    kernel = find_kernel(instance, Target.emulator())
    workspace = workspace_for(cfg.workspace_bytes, q.device)
    with emulation(kernel) as emulator:
        kernel(q, k, v, torch.empty_like(q), cfg.d_head**-0.5, workspace=workspace)
        return emulator.counters()
