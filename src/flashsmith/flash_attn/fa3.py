"""FlashAttention-3's functions, whose module is called ``flash_attn_interface``.

The arguments ``pack_gqa``, ``sm_margin``, ``scheduler_metadata`` and, in the forward,
``num_splits`` change no result and are ignored: flashsmith's heuristics decide.
"""

from __future__ import annotations

from typing import Any

import torch

from flashsmith.flash_attn.calls import Result, Window, call, specification
from flashsmith.flash_attn.kvcache import attend_cache
from flashsmith.ops.decode_call import DecodeOptions
from flashsmith.ops.gate import explaining
from flashsmith.ops.kv_cache import KVAppend, KVCache
from flashsmith.ops.spec import NO_WINDOW, OFF, AttentionSpec

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: Window = NO_WINDOW,
    attention_chunk: int = 0,
    softcap: float = OFF,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Result:
    """Computes ``flash_attn.flash_attn_func`` with FlashAttention-3's arguments and results.

    Args:
        q, k, v: May be float8_e4m3fn on compute capability 9.0.
        q_descale, k_descale, v_descale: float32 (batch, nheads_k): the scales of FP8 tensors.
        qv, attention_chunk: Only None and 0 are supported.

    Returns:
        out; with ``return_attn_probs`` (out, softmax_lse).
    """
    _refuse(qv=qv, attention_chunk=attention_chunk)
    spec = specification(
        causal=causal, softmax_scale=softmax_scale, window_size=window_size, softcap=softcap,
    )  # fmt: skip
    spec = _with_scales(spec, q_descale, k_descale, v_descale)
    return call(q, k, v, spec, OFF, deterministic, False, return_lse=return_attn_probs)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: Window = NO_WINDOW,
    attention_chunk: int = 0,
    softcap: float = OFF,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Result:
    """Computes ``flash_attn_func`` of packed sequences.

    Args:
        q: (total_q, nheads, headdim).
        k, v: (total_k, nheads_k, headdim).
        cu_seqlens_q, cu_seqlens_k: int32 (batch + 1,): the offsets of sequences.
        max_seqlen_q, max_seqlen_k: Upper bounds of the lengths.
        seqused_q, seqused_k: int32 (batch,): the rows in use of each sequence; None: all.
    """
    _refuse(qv=qv, attention_chunk=attention_chunk)
    spec = specification(
        causal=causal, softmax_scale=softmax_scale, window_size=window_size, softcap=softcap,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k, seqused_q=seqused_q, seqused_k=seqused_k,
    )  # fmt: skip
    spec = _with_scales(spec, q_descale, k_descale, v_descale)
    return call(q, k, v, spec, OFF, deterministic, False, return_lse=return_attn_probs)


@explaining
def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    qv: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = NO_WINDOW,
    attention_chunk: int = 0,
    softcap: float = OFF,
    rotary_interleaved: bool = True,
    scheduler_metadata: torch.Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Result:
    """Computes ``flash_attn.flash_attn_with_kvcache`` with FlashAttention-3's arguments; it is not
    differentiable.

    Args:
        page_table: FlashAttention-2's ``block_table``; pages may have any size.
        k_descale, v_descale: float32 (batch, nheads_k), the scales of a float8_e4m3fn cache; q has
            16 bits.
        qv, q_descale, attention_chunk, cu_seqlens_q, cu_seqlens_k_new, rotary_seqlens: Only None
            and 0 are supported; all sequences have the same number of queries.
    """
    _refuse(
        qv=qv, q_descale=q_descale, attention_chunk=attention_chunk, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k_new=cu_seqlens_k_new, rotary_seqlens=rotary_seqlens,
    )  # fmt: skip
    cache = KVCache(
        k_cache, v_cache, cache_seqlens, page_table, cache_batch_idx, cache_leftpad,
        _dense(k_descale), _dense(v_descale),
    )  # fmt: skip
    new = KVAppend.of(k, v, rotary_cos, rotary_sin, rotary_interleaved)
    asked = DecodeOptions(None, causal, window_size, softcap, num_splits, softmax_scale)
    return attend_cache(q, cache, new, asked, return_lse=return_softmax_lse)


def _refuse(**arguments: Any) -> None:
    """Raises NotImplementedError for arguments of FlashAttention-3 that flashsmith does not
    support."""
    for name, value in arguments.items():
        if value is not None and not (type(value) is int and value == 0):
            came = f"a {type(value).__name__}" if isinstance(value, torch.Tensor) else repr(value)
            only = "0" if name == "attention_chunk" else "None"
            raise NotImplementedError(f"{name} is {came}; flashsmith supports {only} alone")


def _with_scales(spec: AttentionSpec, *descales: torch.Tensor | None) -> AttentionSpec:
    """Returns the specification with the scales of q, k and v."""
    if all(t is None for t in descales):
        return spec
    q_scale, k_scale, v_scale = map(_dense, descales)
    return spec._replace(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)


def _dense(descale: torch.Tensor | None) -> torch.Tensor | None:
    """Returns the scales without gaps: FlashAttention-3 allows any strides, kernels do not."""
    return None if descale is None else descale.contiguous()
