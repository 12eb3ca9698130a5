"""Inputs on the GPU, and the check of a result."""

from __future__ import annotations

import torch

from flashsmith.bench import compare, reference_attention
from flashsmith.configs import FlashForwardKernelConfig
from problems import TORCH_DTYPES, Tensors


def random_qkv(
    cfg: FlashForwardKernelConfig,
    seq_len: int = 512,
    batch: int = 1,
    heads: int = 1,
    device: str = "cuda",
) -> Tensors:
    """Normal q, k, v of shape (batch, seq_len, heads, d_head), of cfg's dtype."""
    shape = (batch, seq_len, heads, cfg.d_head)
    q, k, v = (torch.randn(shape, dtype=TORCH_DTYPES[cfg.dtype], device=device) for _ in range(3))
    return q, k, v


def assert_correct(o: torch.Tensor, qkv: Tensors, causal: bool = False, what: object = "") -> None:
    """Against float32 on the GPU."""
    exact = reference_attention(*qkv, causal=causal, compute=torch.float32)
    low = reference_attention(*qkv, causal=causal, compute=o.dtype)
    result = compare(o, exact, low)
    assert result.ok, f"{what} {'causal' if causal else 'full'}: {result}"
