"""torch's scaled_dot_product_attention: as a function, and as torch's flash backend."""

from __future__ import annotations

import torch

from flashsmith.integrations.arguments import (
    check_dimensions,
    check_heads,
    with_dense_rows,
)
from flashsmith.integrations.heads import attend_any_head
from flashsmith.ops.checks import check_flags

_SIZES = ("batch", "heads", "seq_len", "d_head")


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention, by flashsmith's kernels.

    Differentiable by query, key, value and an attn_mask of numbers.

    Args:
        query: (batch, heads, seq_len_q, d_head), float16 or bfloat16.
        key: (batch, heads_kv, seq_len_k, d_head).
        value: (batch, heads_kv, seq_len_k, d_v).
        attn_mask: What fits (batch, heads, seq_len_q, seq_len_k) by broadcasting: bool, True where
            a query sees a key; or of query's dtype, added to the scores.
        dropout_p: The share of weights that are dropped, below 1, in training or not.
        is_causal: Query i sees keys up to i, whatever the lengths are.
        scale: None: 1 / sqrt(d_head).
        enable_gqa: heads may be a multiple of heads_kv.

    Returns:
        (batch, heads, seq_len_q, d_v), in memory (batch, seq_len_q, heads, d_v). A query that sees
        no key gets 0.
    """
    check_dimensions(_SIZES, query=query, key=key, value=value)
    check_flags(is_causal=is_causal)
    check_heads(enable_gqa, query, key)
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask is given and is_causal is True; pass one of them")
    o = attend_any_head(
        *(t.transpose(1, 2) for t in (query, key, value)),
        causal=is_causal,
        top_left=is_causal,
        softmax_scale=scale,
        dropout_p=dropout_p,
        bias=None if attn_mask is None else bias_of(attn_mask, query, key),
    )
    assert isinstance(o, torch.Tensor)
    return o.transpose(1, 2)


def bias_of(attn_mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """What is to be added to the scores, for a mask that is bool or this already.

    Args:
        attn_mask: Fits (batch, heads, seq_len_q, seq_len_k) by broadcasting.
        query, key: (batch, heads, seq_len, d_head).
    """
    if not isinstance(attn_mask, torch.Tensor):
        raise TypeError(f"attn_mask is a {type(attn_mask).__name__}; expected a torch.Tensor")
    scores = (*query.shape[:-1], key.shape[2])
    sizes = (*(1,) * (4 - attn_mask.ndim), *attn_mask.shape)
    if len(sizes) != 4 or any(n not in (1, whole) for n, whole in zip(sizes, scores, strict=True)):
        raise ValueError(
            f"attn_mask has shape {tuple(attn_mask.shape)}, which does not broadcast to {scores}: "
            "(batch, heads, seq_len_q, seq_len_k)"
        )
    if attn_mask.dtype == torch.bool:
        bias = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    elif attn_mask.dtype == query.dtype:
        bias = attn_mask
    else:
        raise TypeError(
            f"attn_mask has dtype {attn_mask.dtype}; expected torch.bool, or query's {query.dtype}"
        )
    return with_dense_rows(bias.view(sizes).expand(*sizes[:3], scores[3]))
