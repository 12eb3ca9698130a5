"""Inputs for kernels, and the check of a result."""

from __future__ import annotations

import signal
from collections.abc import Callable

import torch

from flashsmith.configs import DType, ForwardKernelConfig, KernelId
from flashsmith.reference import compare, reference_attention, reference_lse
from flashsmith.runtime import Kernel
from flashsmith.runtime.workspace import workspace_for

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Emulated = Callable[[KernelId], Kernel]
TORCH_DTYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}


def random_qkv(
    cfg: ForwardKernelConfig,
    seq_len: int = 256,
    batch: int = 1,
    heads: int = 1,
    seq_len_k: int | None = None,
    heads_kv: int | None = None,
) -> Tensors:
    """Normal q, k, v of shape (batch, seq_len, heads, d_head), of cfg's dtype."""
    q_shape = (batch, seq_len, heads, cfg.d_head)
    k_shape = (batch, seq_len_k or seq_len, heads_kv or heads, cfg.d_head)
    q, k, v = (torch.randn(s).to(TORCH_DTYPES[cfg.dtype]) for s in (q_shape, k_shape, k_shape))
    return q, k, v


def run(
    kernel: Kernel, qkv: Tensors, scale: float | None = None, o: torch.Tensor | None = None
) -> torch.Tensor:
    """The kernel's result, into ``o`` or memory that was NaN."""
    o = torch.full_like(qkv[0], torch.nan) if o is None else o
    config = kernel.instance.config
    workspace = workspace_for(kernel.plan(*qkv, o), o.device)
    kernel(*qkv, o, config.d_head**-0.5 if scale is None else scale, workspace=workspace)
    assert workspace is None or not workspace.any(), "the launch left its workspace dirty"
    return o


def assert_correct(
    o: torch.Tensor, qkv: Tensors, instance: KernelId, scale: float | None = None
) -> None:
    causal = instance.variant.causal
    exact = reference_attention(*qkv, causal=causal, softmax_scale=scale)
    low = reference_attention(*qkv, causal=causal, softmax_scale=scale, compute=o.dtype)
    result = compare(o, exact, low)
    assert result.ok, f"{instance.name}: {result}"


def run_with_lse(kernel: Kernel, qkv: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's result and log-sum-exp, into memory that was NaN."""
    q, config = qkv[0], kernel.instance.config
    batch, seq_len, heads, _ = q.shape
    o, lse = torch.full_like(q, torch.nan), torch.full((batch, heads, seq_len), torch.nan)
    workspace = workspace_for(kernel.plan(*qkv, o, lse=lse), q.device)
    kernel(*qkv, o, config.d_head**-0.5, lse=lse, workspace=workspace)
    return o, lse


def assert_lse(lse: torch.Tensor, qkv: Tensors, instance: KernelId) -> None:
    """FP32 sums of exact exponentials; polynomials have a relative error of 7.5e-5."""
    expected = reference_lse(*qkv[:2], causal=instance.variant.causal).float()
    error = 8e-5 if getattr(instance.config, "fma_exponentials", 0) else 3e-6
    torch.testing.assert_close(lse, expected, atol=error, rtol=1e-6)


def heed_interrupts() -> None:
    """For Popen's preexec_fn: a background session ignores SIGINT, its child must not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
