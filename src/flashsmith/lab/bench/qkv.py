"""The tensors of a benchmark's workloads."""

from __future__ import annotations

import torch

from flashsmith.problem import Problem

QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def make_qkv(problem: Problem, device: str, seed: int = 0) -> QKV:
    """Returns normally distributed q, k and v."""
    generator = torch.Generator(device).manual_seed(seed)
    dtype = problem.dtype.to_torch_dtype()
    q, k, v = (
        torch.randn(shape, generator=generator, device=device, dtype=dtype)
        for shape in (problem.q_shape, problem.k_shape, problem.k_shape)
    )
    return q, k, v
