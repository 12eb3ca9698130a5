"""What a kernel executes, counted on the emulator."""

from __future__ import annotations

import torch

from flashsmith.configs import KernelId
from flashsmith.jit import Target
from flashsmith.report.families import family_of
from flashsmith.report.family import Counts, Sample
from flashsmith.runtime import emulation, find_kernel
from flashsmith.runtime.workspace import workspace_for

_LARGEST = ("longest_ldmatrix_run", "longest_mma_run")  # largest of all, not sums


def count(instance: KernelId) -> Counts:
    """Runs the kernel on its family's two samples, and splits what it counts into tiles and visits.

    Raises:
        EmulatorFault: The kernel broke a rule.
        FlashsmithError: It is in no library and cannot be built.
    """
    family = family_of(instance.config)
    samples = family.samples(instance.config, instance.variant)
    short, long = (count_launch(instance, sample) for sample in samples)
    a, b = (sample.work for sample in samples)
    per_visit, per_tile = {}, {}
    for name in short.keys() - set(_LARGEST):
        n_a, n_b = (a.loads, b.loads) if name in family.per_load else (a.visits, b.visits)
        determinant = a.tiles * n_b - b.tiles * n_a
        per_visit[name] = (a.tiles * long[name] - b.tiles * short[name]) / determinant
        per_tile[name] = (n_b * short[name] - n_a * long[name]) / determinant
    return Counts(samples[0], short, per_visit, per_tile)


def count_launch(instance: KernelId, sample: Sample) -> dict[str, int]:
    """The emulator's counters for one launch on random tensors."""
    cfg = instance.config
    generator = torch.Generator().manual_seed(0)

    def random(seq_len: int) -> torch.Tensor:
        shape = (1, seq_len, 1, cfg.d_head)
        return torch.randn(shape, generator=generator).to(cfg.dtype.to_torch_dtype())

    q, k, v = (random(n) for n in (sample.seq_len_q, sample.seq_len_k, sample.seq_len_k))
    kernel = find_kernel(instance, Target.emulator())
    o = torch.empty_like(q)
    workspace = workspace_for(kernel.plan(q, k, v, o), q.device)
    with emulation(kernel) as emulator:
        kernel(q, k, v, o, cfg.d_head**-0.5, workspace=workspace)
        return emulator.counters()
