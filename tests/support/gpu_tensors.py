"""Makes inputs on the GPU, and checks results."""

from __future__ import annotations

import torch

from flashsmith.configs import ForwardKernelConfig
from flashsmith.reference import compare, reference_attention
from support.problems import TORCH_DTYPES, Tensors


def random_qkv(
    cfg: ForwardKernelConfig,
    seq_len: int = 512,
    batch: int = 1,
    heads: int = 1,
    device: str = "cuda",
    seq_len_k: int | None = None,
    heads_kv: int | None = None,
) -> Tensors:
    """Returns normal q, k, v of shape (batch, seq_len, heads, d_head), of cfg's dtype."""
    q_shape = (batch, seq_len, heads, cfg.d_head)
    k_shape = (batch, seq_len_k or seq_len, heads_kv or heads, cfg.d_head)
    dtype = TORCH_DTYPES[cfg.dtype]
    q, k, v = (torch.randn(s, dtype=dtype, device=device) for s in (q_shape, k_shape, k_shape))
    return q, k, v


def assert_correct(o: torch.Tensor, qkv: Tensors, causal: bool = False, what: object = "") -> None:
    """Compares a result with float32 on the GPU."""
    exact = reference_attention(*qkv, causal=causal, compute=torch.float32)
    low = reference_attention(*qkv, causal=causal, compute=o.dtype)
    result = compare(o, exact, low)
    assert result.ok, f"{what} {'causal' if causal else 'full'}: {result}"
