"""FlashAttention's function of few queries over a cache."""

from __future__ import annotations

from typing import Any

import torch

from flashsmith.flash_attn.calls import Result, Window, sides
from flashsmith.integrations.arguments import check_types
from flashsmith.integrations.heads import decode_any_head
from flashsmith.ops.gate import explaining
from flashsmith.ops.layout import with_dense_rows


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
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Result:
    """Few queries of each sequence over the keys of a cache, to which new ones may be appended.

    Not differentiable. Pages may have any size; FlashAttention's have multiples of 256 rows. Where
    headdim is no multiple of 8, the whole cache is copied, as FlashAttention does. Other tensors
    may have any strides.

    Args:
        q: (batch, seqlen_q, nheads, headdim).
        k_cache, v_cache: (batch_cache, seqlen_cache, nheads_k, headdim), or with ``block_table``
            (num_blocks, page_block_size, nheads_k, headdim). Without ``cache_batch_idx`` sequences
            have the first entries.
        k, v: (batch, seqlen_new, nheads_k, headdim): written to the cache behind ``cache_seqlens``
            rows, and seen.
        rotary_cos, rotary_sin: (seqlen_ro, rotary_dim / 2): k is turned by its positions, from
            ``cache_seqlens`` on, before it is written; and q, each query by its own if ``causal``
            or a side of ``window_size`` below the rows of the cache is asked for, else all by the
            first. With k and v alone.
        cache_seqlens: int32 (batch,), or as many for all: rows in use.
        cache_batch_idx: int32 (batch,): the entry of each sequence; None: its own number.
        cache_leftpad: int32 (batch,): rows before the first key.
        block_table: int32 (batch, max_num_blocks_per_seq): the pages of each sequence.
        causal, window_size: From query i + seqlen_k - seqlen_q, new keys counted.
        rotary_interleaved: Elements 2 i and 2 i + 1 are turned together; else i and
            i + rotary_dim / 2.
        num_splits: In how many parts the keys of each sequence are visited; 0: as suits the GPU.
        softmax_scale, softcap, alibi_slopes: As of ``flash_attn_func``.

    Returns:
        out, (batch, seqlen_q, nheads, headdim); with ``return_softmax_lse`` (out, softmax_lse),
        float32 (batch, nheads, seqlen_q).
    """
    return attend_cache(
        q, k_cache, v_cache, cache_seqlens, cache_batch_idx, cache_leftpad, block_table,
        k_new=k, v_new=v, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved, causal=causal, window_size=window_size,
        softcap=softcap, alibi_slopes=alibi_slopes, softmax_scale=softmax_scale,
        splits=num_splits, return_lse=return_softmax_lse,
    )  # fmt: skip


def attend_cache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_seqlens: int | torch.Tensor | None,
    cache_batch_idx: torch.Tensor | None,
    cache_leftpad: torch.Tensor | None,
    block_table: torch.Tensor | None,
    *,
    window_size: Window,
    softcap: float,
    **keywords: Any,
) -> Result:
    """Calls ``decode`` as FlashAttention-2 and -3 do; ``keywords`` are ``decode``'s own."""
    check_types(q=q, k_cache=k_cache, v_cache=v_cache)
    cache_seqlens, cache_batch_idx, cache_leftpad, block_table = map(
        _dense, (cache_seqlens, cache_batch_idx, cache_leftpad, block_table)
    )
    if block_table is cache_batch_idx is None:
        k_cache, v_cache = k_cache[: q.shape[0]], v_cache[: q.shape[0]]
    return decode_any_head(  # type: ignore[no-any-return]
        q, k_cache, v_cache,
        cache_seqlens=cache_seqlens, cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad,
        block_table=block_table, window_size=sides(window_size), softcap=max(softcap, 0.0),
        **keywords,
    )  # fmt: skip


def _dense(numbers: Any) -> Any:
    """Numbers of sequences without gaps; `decode` takes or refuses what is no tensor."""
    return with_dense_rows(numbers) if isinstance(numbers, torch.Tensor) else numbers
