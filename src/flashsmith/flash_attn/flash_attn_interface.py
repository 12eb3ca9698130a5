"""FlashAttention's module of this name, including functions that other projects import from it.

They are differentiable by q, k, v and sinks, also through the log-sum-exp that they return, but not
with ``out``.

Keyword-only arguments are flashsmith's extensions: ``sinks`` (a logit for each head of q, whose
exponential is part of the softmax's denominator), ``return_lse`` (return (out, softmax_lse)),
``out`` (where to write the result) and ``config`` (the kernel's configuration).
"""

from __future__ import annotations

import torch

from flashsmith.configs import ForwardKernelConfig
from flashsmith.flash_attn.calls import Result, Window, call, specification, unpacked
from flashsmith.flash_attn.kvcache import flash_attn_with_kvcache
from flashsmith.flash_attn.low_level import (
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
)
from flashsmith.ops.spec import NO_WINDOW, OFF

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "_flash_attn_varlen_backward",
    "_flash_attn_varlen_forward",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = OFF,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = NO_WINDOW,
    softcap: float = OFF,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    sinks: torch.Tensor | None = None,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
    config: ForwardKernelConfig | None = None,
) -> Result:
    """Computes softmax(q k^T * softmax_scale) v.

    Args:
        q: (batch, seqlen_q, nheads, headdim), float16 or bfloat16.
        k, v: (batch, seqlen_k, nheads_k, headdim); nheads is a multiple of nheads_k.
        dropout_p: The share of weights that are dropped, below 1; its state comes from torch's
            generator.
        softmax_scale: None: 1 / sqrt(headdim).
        causal: Query i sees keys up to i + seqlen_k - seqlen_q.
        window_size: (left, right): query i sees keys from i + seqlen_k - seqlen_q - left to i +
            seqlen_k - seqlen_q + right, inclusive; -1: no bound.
        softcap: Scores become softcap * tanh(score / softcap); 0 or less: unchanged.
        alibi_slopes: float32, (nheads,) or (batch, nheads): slope * |i + seqlen_k - seqlen_q - j|
            is subtracted from the score of query i and key j.
        deterministic: Whether gradients are bitwise equal in every run; results always are.
        return_attn_probs: Whether to also return the log-sum-exp and S_dmask, which
            FlashAttention's tests read.

    Returns:
        out, (batch, seqlen_q, nheads, headdim); with ``return_attn_probs`` (out, softmax_lse,
        S_dmask): float32 (batch, nheads, seqlen_q), and the weights, (batch, nheads, seqlen_q,
        seqlen_k), negative if dropped; without dropout an empty tensor.
    """
    spec = specification(
        causal=causal, softmax_scale=softmax_scale, window_size=window_size, softcap=softcap,
        alibi_slopes=alibi_slopes, sinks=sinks,
    )  # fmt: skip
    return call(
        q, k, v, spec, dropout_p, deterministic, return_attn_probs,
        return_lse=return_lse, out=out, config=config,
    )  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    dropout_p: float = OFF,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = NO_WINDOW,
    softcap: float = OFF,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    sinks: torch.Tensor | None = None,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
    config: ForwardKernelConfig | None = None,
) -> Result:
    """Computes ``flash_attn_func`` of q, k, v in one tensor, (batch, seqlen, 3, nheads,
    headdim)."""
    q, k, v = unpacked("qkv", qkv, ("batch", "seqlen"), 3)
    spec = specification(
        causal=causal, softmax_scale=softmax_scale, window_size=window_size, softcap=softcap,
        alibi_slopes=alibi_slopes, sinks=sinks,
    )  # fmt: skip
    return call(
        q, k, v, spec, dropout_p, deterministic, return_attn_probs,
        return_lse=return_lse, out=out, config=config,
    )  # fmt: skip


def flash_attn_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    dropout_p: float = OFF,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = NO_WINDOW,
    softcap: float = OFF,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    sinks: torch.Tensor | None = None,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
    config: ForwardKernelConfig | None = None,
) -> Result:
    """Computes ``flash_attn_func`` of k and v in one tensor, (batch, seqlen_k, 2, nheads_k,
    headdim)."""
    k, v = unpacked("kv", kv, ("batch", "seqlen"), 2)
    spec = specification(
        causal=causal, softmax_scale=softmax_scale, window_size=window_size, softcap=softcap,
        alibi_slopes=alibi_slopes, sinks=sinks,
    )  # fmt: skip
    return call(
        q, k, v, spec, dropout_p, deterministic, return_attn_probs,
        return_lse=return_lse, out=out, config=config,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = OFF,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = NO_WINDOW,
    softcap: float = OFF,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
    *,
    sinks: torch.Tensor | None = None,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
    config: ForwardKernelConfig | None = None,
) -> Result:
    """Computes ``flash_attn_func`` of packed sequences.

    Args:
        q: (total_q, nheads, headdim).
        k, v: (total_k, nheads_k, headdim); with ``block_table`` (num_blocks, page_block_size,
            nheads_k, headdim), of any page_block_size, and not differentiable.
        cu_seqlens_q, cu_seqlens_k: int32 (batch + 1,): the offsets of sequences; with
            ``block_table``, cu_seqlens_k says only how many keys each sequence has.
        max_seqlen_q, max_seqlen_k: Upper bounds of the lengths.
        block_table: int32 (batch, max_num_blocks_per_seq): the pages of each sequence. Kernels read
            them directly if max_seqlen_q is small or the forward's kernels support it; else they
            are copied (docs/decode.md).

    Returns:
        out, (total_q, nheads, headdim); with ``return_attn_probs`` (out, softmax_lse, S_dmask):
        float32 (nheads, total_q), and an empty tensor.
    """
    spec = specification(
        causal=causal, softmax_scale=softmax_scale, window_size=window_size, softcap=softcap,
        alibi_slopes=alibi_slopes, sinks=sinks, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
        block_table=block_table,
    )  # fmt: skip
    return call(
        q, k, v, spec, dropout_p, deterministic, return_attn_probs,
        return_lse=return_lse, out=out, config=config,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    dropout_p: float = OFF,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = NO_WINDOW,
    softcap: float = OFF,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    sinks: torch.Tensor | None = None,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
    config: ForwardKernelConfig | None = None,
) -> Result:
    """Computes ``flash_attn_varlen_func`` of q, k, v in one tensor, (total, 3, nheads, headdim)."""
    q, k, v = unpacked("qkv", qkv, ("total",), 3)
    spec = specification(
        causal=causal, softmax_scale=softmax_scale, window_size=window_size, softcap=softcap,
        alibi_slopes=alibi_slopes, sinks=sinks, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens,
        max_seqlen_q=max_seqlen, max_seqlen_k=max_seqlen,
    )  # fmt: skip
    return call(
        q, k, v, spec, dropout_p, deterministic, return_attn_probs,
        return_lse=return_lse, out=out, config=config,
    )  # fmt: skip


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = OFF,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = NO_WINDOW,
    softcap: float = OFF,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    sinks: torch.Tensor | None = None,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
    config: ForwardKernelConfig | None = None,
) -> Result:
    """Computes ``flash_attn_varlen_func`` of k and v in one tensor, (total_k, 2, nheads_k,
    headdim)."""
    k, v = unpacked("kv", kv, ("total",), 2)
    spec = specification(
        causal=causal, softmax_scale=softmax_scale, window_size=window_size, softcap=softcap,
        alibi_slopes=alibi_slopes, sinks=sinks, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
    )  # fmt: skip
    return call(
        q, k, v, spec, dropout_p, deterministic, return_attn_probs,
        return_lse=return_lse, out=out, config=config,
    )  # fmt: skip
