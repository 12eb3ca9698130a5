"""FlashAttention's function for few queries over a KV cache."""

from __future__ import annotations

from typing import Any

import torch

from flashsmith.flash_attn.calls import Result, Window, sides
from flashsmith.integrations.arguments import check_types, float32
from flashsmith.integrations.heads import decode_any_head
from flashsmith.ops.checks import check_flags
from flashsmith.ops.decode_call import DecodeCall, DecodeOptions
from flashsmith.ops.decode_calls import run_as_before
from flashsmith.ops.gate import explaining
from flashsmith.ops.kv_cache import KVAppend, KVCache
from flashsmith.ops.layout import with_dense_rows
from flashsmith.ops.spec import NO_WINDOW, OFF, normal_window


@explaining
def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = NO_WINDOW,
    softcap: float = OFF,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    sinks: torch.Tensor | None = None,
) -> Result:
    """Computes attention of few queries of each sequence over a KV cache, after appending new keys.

    The result is not differentiable. Pages may have any size; FlashAttention requires multiples of
    256 rows. If headdim is not a multiple of 8, the whole cache is copied, as in FlashAttention.
    Other tensors may have any strides.

    Args:
        q: (batch, seqlen_q, nheads, headdim).
        k_cache, v_cache: (batch_cache, seqlen_cache, nheads_k, headdim), or with ``block_table``
            (num_blocks, page_block_size, nheads_k, headdim). Without ``cache_batch_idx``, sequence
            i has slot i.
        k, v: (batch, seqlen_new, nheads_k, headdim): written to the cache behind ``cache_seqlens``
            rows, before attention.
        rotary_cos, rotary_sin: (seqlen_ro, rotary_dim / 2): k is rotated by its positions, from
            ``cache_seqlens`` on, before it is written. Each query is rotated by its position if
            ``causal``, or if a side of ``window_size`` is below the rows of the cache; else all are
            rotated by the first position. It needs k and v.
        cache_seqlens: int32 (batch,), or one int for all: the rows in use.
        cache_batch_idx: int32 (batch,): the slot of each sequence; None: sequence i has slot i.
        cache_leftpad: int32 (batch,): rows before the first key.
        block_table: int32 (batch, max_num_blocks_per_seq): the pages of each sequence.
        causal, window_size: The diagonal of query i is i + seqlen_k - seqlen_q, new keys included.
        rotary_interleaved: Whether elements 2 i and 2 i + 1 form a pair; else i and i + rotary_dim
            / 2 do.
        num_splits: The number of splits of each sequence's keys; 0: as suits the GPU.
        softmax_scale, softcap, alibi_slopes, sinks: See ``flash_attn_func``.

    Returns:
        out, (batch, seqlen_q, nheads, headdim); with ``return_softmax_lse`` (out, softmax_lse),
        float32 (batch, nheads, seqlen_q).
    """
    if not type(causal) is type(return_softmax_lse) is type(rotary_interleaved) is bool:
        check_flags(
            causal=causal, return_softmax_lse=return_softmax_lse,
            rotary_interleaved=rotary_interleaved,
        )  # fmt: skip
    if sinks is not None:
        sinks = float32("sinks", sinks)
    new = KVAppend.of(k, v, rotary_cos, rotary_sin, rotary_interleaved)
    cache = (
        k_cache, v_cache, cache_seqlens, block_table, cache_batch_idx, cache_leftpad, None, None,
    )  # fmt: skip
    options = causal, window_size, softcap, num_splits, softmax_scale
    others = alibi_slopes, sinks, 0, None
    found = run_as_before(None, q, None, return_softmax_lse, cache, options, others, new or ())
    if found is not None:
        o, lse, _ = found
        return o if lse is None else (o, lse)
    asked = DecodeOptions(None, *options)
    return attend_cache(
        q, KVCache(*cache), new, asked,
        alibi_slopes=alibi_slopes, sinks=sinks, return_lse=return_softmax_lse,
    )  # fmt: skip


def attend_cache(
    q: torch.Tensor,
    cache: KVCache,
    new: KVAppend | None,
    asked: DecodeOptions,
    *,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    return_lse: bool,
) -> Result:
    """Calls ``decode`` with the conventions of FlashAttention-2 and -3: the sides of a window may
    be in a tensor, a softcap below 0 means none, integer tensors may have any strides, and without
    indices sequence i has slot i of the cache."""
    k, v, seqlens, table, batch_idx, leftpad, k_scale, v_scale = cache
    if not isinstance(q, torch.Tensor) or not (type(k) is type(v) is torch.Tensor):
        check_types(q=q, k_cache=k, v_cache=v)
    if not type(asked.causal) is type(return_lse) is bool:
        check_flags(causal=asked.causal, return_lse=return_lse)
    if new is not None and type(new.interleaved) is not bool:
        check_flags(rotary_interleaved=new.interleaved)
    if table is batch_idx is None and k.shape[0] != q.shape[0]:
        k, v = k[: q.shape[0]], v[: q.shape[0]]
    cache = KVCache(
        k, v, _dense(seqlens), _dense(table), _dense(batch_idx), _dense(leftpad), k_scale, v_scale
    )
    config, causal, window_size, softcap, splits, scale = asked
    window_size = normal_window(sides(window_size))
    asked = DecodeOptions(config, causal, window_size, max(softcap, 0.0), splits, scale)
    call = DecodeCall(q, cache, new, None, return_lse, alibi_slopes, sinks)
    return decode_any_head(asked, call)


def _dense(numbers: Any) -> Any:
    """Returns an integer tensor without gaps; `decode` accepts or refuses any other type."""
    return with_dense_rows(numbers) if isinstance(numbers, torch.Tensor) else numbers
