"""torch's scaled_dot_product_attention, computed by flashsmith's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from flashsmith.integrations.arguments import (
    cast_by_autocast,
    check_types,
    with_positive_scale,
)
from flashsmith.integrations.heads import attend_any_head
from flashsmith.ops.checks import check_flags, needs_gradient
from flashsmith.ops.gate import explaining, refuse_freed
from flashsmith.ops.layout import with_dense_rows


@explaining
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
    """Computes torch.nn.functional.scaled_dot_product_attention with flashsmith's kernels.

    The result is differentiable by query, key, value and an attn_mask of query's dtype.

    Args:
        query: (batch, heads, seq_len_q, d_head), float16 or bfloat16; float32 under autocast, which
            casts it. There may also be several batch dimensions, or none, or no heads; dimensions
            are broadcast.
        key: (batch, heads_kv, seq_len_k, d_head).
        value: (batch, heads_kv, seq_len_k, d_v).
        attn_mask: A tensor that broadcasts to (batch, heads, seq_len_q, seq_len_k): bool, True
            where a query sees a key; or of query's dtype or float32, added to the scores.
        dropout_p: The share of weights that are dropped, in training or not.
        is_causal: Query i sees keys up to i, whatever the lengths are.
        scale: None: 1 / sqrt(d_head). It may be 0 or negative.
        enable_gqa: Whether heads may be a multiple of heads_kv.

    Returns:
        (batch, heads, seq_len_q, d_v), in memory (batch, seq_len_q, heads, d_v). A query that sees
        no key gets 0.

    Raises:
        NotImplementedError: An attn_mask of float32 requires a gradient.
        TypeError, ValueError: An argument is not supported; the message names it.
    """
    check_types(query=query, key=key, value=value)
    check_flags(is_causal=is_causal, enable_gqa=enable_gqa)
    masks = [] if attn_mask is None else [attn_mask]
    if attn_mask is not None:
        check_types(attn_mask=attn_mask)
        refuse_freed("attn_mask", attn_mask)
        if is_causal:
            raise ValueError("attn_mask is given and is_causal is True; pass one of them")
    query, key, value, *masks = cast_by_autocast(query, key, value, *masks)
    query, scale = with_positive_scale(query, scale)
    places, (query, key, value) = _broadcast(query, key, value, enable_gqa)
    semantics: dict[str, Any] = {"causal": is_causal, "top_left": is_causal}
    for mask in masks:
        semantics |= _added(_as_scores(mask, places, query, key), query, key)
    drops_all = type(dropout_p) in (int, float) and dropout_p == 1
    o = attend_any_head(
        *(t.transpose(1, 2) for t in (query, key, value)),
        softmax_scale=scale,
        dropout_p=0.0 if drops_all else dropout_p,
        **semantics,
    )
    assert isinstance(o, torch.Tensor)
    o = o.transpose(1, 2)
    if drops_all:
        o = o * 0
    return o if len(places) == 2 else o.reshape(*places, *o.shape[2:])


def _broadcast(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool
) -> tuple[tuple[int, ...], Sequence[torch.Tensor]]:
    """Returns the sizes of the result before seq_len, and the three tensors with four dimensions.
    Heads are broadcast unless they are shared."""
    given = {"query": query, "key": key, "value": value}
    behind = 3 if enable_gqa else 2  # dimensions that are not broadcast
    for name, t in given.items():
        if t.ndim < behind:
            raise ValueError(
                f"{name} has shape {tuple(t.shape)}; expected at least {behind} dimensions, of "
                "(batch, heads, seq_len, d_head)"
            )
    try:
        batch: torch.Size = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
            *(t.shape[:-behind] for t in given.values())
        )
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in given.items())
        of, advice = "batch and heads", "; pass enable_gqa=True to have heads share keys"
        raise ValueError(
            f"{'batch' if enable_gqa else of} cannot be broadcast: {shapes}; expected (batch, "
            f"heads, seq_len, d_head){'' if enable_gqa else advice}"
        ) from None
    found = [_in_four(t, (*batch, *t.shape[-behind:-2])) for t in given.values()]
    return (*batch, *query.shape[-behind:-2]), found


def _in_four(t: torch.Tensor, places: tuple[int, ...]) -> torch.Tensor:
    """Returns t as (batch, heads, seq_len, d_head), broadcast to ``places`` before seq_len."""
    if t.ndim == 4 and t.shape[:2] == places:
        return t
    heads = places[-1] if places else 1
    return t.expand(*places, *t.shape[-2:]).reshape(prod(places[:-1]), heads, *t.shape[-2:])


def _as_scores(
    attn_mask: torch.Tensor, places: tuple[int, ...], query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """Returns a mask of the result's dimensions as one for scores with four dimensions."""
    _sizes(attn_mask, (*places, query.shape[2], key.shape[2]))
    return attn_mask if len(places) <= 2 or attn_mask.ndim <= 3 else _in_four(attn_mask, places)


def _sizes(attn_mask: torch.Tensor, scores: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the mask's sizes, padded to the scores' dimensions. Raises ValueError if the mask
    does not broadcast to the scores."""
    sizes = (*(1,) * (len(scores) - attn_mask.ndim), *attn_mask.shape)
    if len(sizes) == len(scores) and all(
        n in (1, whole) for n, whole in zip(sizes, scores, strict=True)
    ):
        return sizes
    raise ValueError(
        f"attn_mask has shape {tuple(attn_mask.shape)}, which does not broadcast to {scores}: "
        "(batch, heads, seq_len_q, seq_len_k)"
    )


def _added(attn_mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> dict[str, Any]:
    """Returns the keywords of ``attention`` for the mask. A bias must have query's dtype, so a
    float32 mask is read as a tensor that a score_mod captures."""
    if attn_mask.dtype != torch.float32 or query.dtype == torch.float32:
        return {"bias": bias_of(attn_mask, query, key)}
    if needs_gradient(attn_mask):
        raise NotImplementedError(
            f"attn_mask has dtype torch.float32 and requires a gradient, which is computed of "
            f"query's dtype alone: pass attn_mask.to({query.dtype}), or detach it"
        )
    numbers = attn_mask.expand(*query.shape[:3], key.shape[2])

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + numbers[b, h, q_idx, kv_idx]

    return {"score_mod": score_mod} if numbers.numel() else {}


def bias_of(attn_mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Returns the tensor that is added to the scores, for a bool mask or one of query's dtype.

    Args:
        attn_mask: A tensor that broadcasts to (batch, heads, seq_len_q, seq_len_k).
        query, key: (batch, heads, seq_len, d_head).
    """
    sizes = _sizes(attn_mask, (*query.shape[:3], key.shape[2]))
    if attn_mask.dtype == torch.bool:
        bias = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    elif attn_mask.dtype == query.dtype:
        bias = attn_mask
    else:
        raise TypeError(
            f"attn_mask has dtype {attn_mask.dtype}; expected torch.bool, torch.float32 or query's "
            f"{query.dtype}"
        )
    return with_dense_rows(bias.view(sizes).expand(*sizes[:3], key.shape[2]))
