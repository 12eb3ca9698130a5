"""Makes inputs for kernels, and checks results."""

from __future__ import annotations

import signal
from collections.abc import Callable

import torch

from flashsmith.configs import DType, ForwardKernelConfig, KernelId
from flashsmith.reference import (
    attention_with_rounded_weights,
    compare,
    reference_attention,
    reference_lse,
)
from flashsmith.runtime import Kernel
from flashsmith.runtime.workspace import workspace_for

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Emulated = Callable[[KernelId], Kernel]
FP8 = torch.float8_e4m3fn
TORCH_DTYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}


def random_qkv(
    cfg: ForwardKernelConfig,
    seq_len: int = 256,
    batch: int = 1,
    heads: int = 1,
    seq_len_k: int | None = None,
    heads_kv: int | None = None,
) -> Tensors:
    """Returns normal q, k, v of shape (batch, seq_len, heads, d_head), of cfg's dtypes."""
    q_shape = (batch, seq_len, heads, cfg.d_head)
    k_shape = (batch, seq_len_k or seq_len, heads_kv or heads, cfg.d_head)
    shapes = {"q": q_shape, "k": k_shape, "v": k_shape}
    q, k, v = (
        torch.randn(shape).to(FP8 if name in cfg.fp8_tensors else TORCH_DTYPES[cfg.dtype])
        for name, shape in shapes.items()
    )
    return q, k, v


def in_16_bits(qkv: Tensors, dtype: torch.dtype) -> Tensors:
    """Returns FP8 tensors converted to ``dtype``, exactly, and other tensors unchanged."""
    q, k, v = (t.to(dtype) if t.dtype == FP8 else t for t in qkv)
    return q, k, v


def run(
    kernel: Kernel, qkv: Tensors, scale: float | None = None, o: torch.Tensor | None = None
) -> torch.Tensor:
    """Runs a kernel, and returns its result in ``o``, or in memory that was NaN."""
    config = kernel.instance.config
    if o is None:
        o = torch.full(qkv[0].shape, torch.nan, dtype=TORCH_DTYPES[config.dtype])
    workspace = workspace_for(kernel.plan(*qkv, o), o.device)
    kernel(*qkv, o, config.d_head**-0.5 if scale is None else scale, workspace=workspace)
    assert workspace is None or not workspace.any(), "the launch left its workspace dirty"
    return o


def assert_correct(
    o: torch.Tensor, qkv: Tensors, instance: KernelId, scale: float | None = None
) -> None:
    semantics = {"causal": instance.variant.causal, "softmax_scale": scale}
    qkv = in_16_bits(qkv, o.dtype)
    exact = reference_attention(*qkv, **semantics)
    if "v" in instance.config.fp8_tensors:
        low = attention_with_rounded_weights(*qkv, weights_in=FP8, **semantics)
    else:
        low = reference_attention(*qkv, **semantics, compute=o.dtype)
    result = compare(o, exact, low)
    assert result.ok, f"{instance.name}: {result}"


def run_with_lse(kernel: Kernel, qkv: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the kernel's result and LSE, in memory that was NaN."""
    q, config = qkv[0], kernel.instance.config
    batch, seq_len, heads, _ = q.shape
    o = torch.full(q.shape, torch.nan, dtype=TORCH_DTYPES[config.dtype])
    lse = torch.full((batch, heads, seq_len), torch.nan)
    workspace = workspace_for(kernel.plan(*qkv, o, lse=lse), q.device)
    kernel(*qkv, o, config.d_head**-0.5, lse=lse, workspace=workspace)
    return o, lse


def assert_lse(lse: torch.Tensor, qkv: Tensors, instance: KernelId) -> None:
    """Compares with FP32 sums of exact exponentials; polynomials have a relative error of 7.5e-5,
    and FP8 scores are rough sums."""
    q, k, _ = in_16_bits(qkv, TORCH_DTYPES[instance.config.dtype])
    expected = reference_lse(q, k, causal=instance.variant.causal).float()
    error = 8e-5 if getattr(instance.config, "fma_exponentials", 0) else 3e-6
    error = 1e-3 if instance.config.fp8_tensors else error
    torch.testing.assert_close(lse, expected, atol=error, rtol=1e-6)


def heed_interrupts() -> None:
    """Restores SIGINT, which a background session ignores; for Popen's preexec_fn."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
