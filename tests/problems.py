"""Inputs for kernels, and the check of a result."""

from __future__ import annotations

import signal

import torch

from flashsmith.bench import compare, reference_attention
from flashsmith.configs import DType, FlashForwardKernelConfig, ForwardKernelInstance
from flashsmith.runtime import Kernel

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
TORCH_DTYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}


def random_qkv(
    cfg: FlashForwardKernelConfig, seq_len: int = 256, batch: int = 1, heads: int = 1
) -> Tensors:
    """Normal q, k, v of shape (batch, seq_len, heads, d_head), of cfg's dtype."""
    shape = (batch, seq_len, heads, cfg.d_head)
    q, k, v = (torch.randn(shape).to(TORCH_DTYPES[cfg.dtype]) for _ in range(3))
    return q, k, v


def run(kernel: Kernel, qkv: Tensors, scale: float | None = None) -> torch.Tensor:
    """The kernel's result, into memory that was NaN."""
    o = torch.full_like(qkv[0], torch.nan)
    kernel(*qkv, o, kernel.instance.config.d_head**-0.5 if scale is None else scale)
    return o


def assert_correct(
    o: torch.Tensor, qkv: Tensors, instance: ForwardKernelInstance, scale: float | None = None
) -> None:
    causal = instance.variant.causal
    exact = reference_attention(*qkv, causal=causal, softmax_scale=scale)
    low = reference_attention(*qkv, causal=causal, softmax_scale=scale, compute=o.dtype)
    result = compare(o, exact, low)
    assert result.ok, f"{instance.name}: {result}"


def heed_interrupts() -> None:
    """For Popen's preexec_fn: a background session ignores SIGINT, its child must not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
