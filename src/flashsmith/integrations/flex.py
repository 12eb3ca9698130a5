"""torch's flex_attention, computed by flashsmith's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from flashsmith.integrations.arguments import (
    cast_by_autocast,
    check_dimensions,
    check_heads,
    with_positive_scale,
)
from flashsmith.integrations.heads import attend_any_head
from flashsmith.ops.checks import check_flags
from flashsmith.ops.gate import explaining

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import AuxOutput, AuxRequest

_SIZES = ("batch", "heads", "seq_len", "d_head")


@explaining
def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor] | tuple[torch.Tensor, AuxOutput]:
    """Computes torch.nn.attention.flex_attention.flex_attention with flashsmith's kernels.

    The result is differentiable by query, key and value, also through the log-sum-exp.

    Args:
        query: (batch, heads, seq_len_q, d_head), float16 or bfloat16; float32 under autocast, which
            casts it.
        key: (batch, heads_kv, seq_len_k, d_head). The batch of key and value may be 1 if a
            block_mask has query's batch.
        value: (batch, heads_kv, seq_len_k, d_v).
        score_mod: f(score, b, h, q_idx, kv_idx), the new score.
        block_mask: A mask from torch's or flashsmith's create_block_mask.
        scale: None: 1 / sqrt(d_head). It may be 0 or negative.
        enable_gqa: Whether heads may be a multiple of heads_kv.
        return_lse: Whether to also return the log-sum-exp, float32 (batch, heads, seq_len_q).
        kernel_options: Must be None; torch's options are for its Triton kernels.
        return_aux: torch's AuxRequest, which replaces ``return_lse``: the AuxOutput has the
            log-sum-exp if it is requested. ``max_scores`` are not supported.

    Returns:
        (batch, heads, seq_len_q, d_v), in memory (batch, seq_len_q, heads, d_v); with
        ``return_lse`` also the log-sum-exp, with ``return_aux`` the AuxOutput.

    Raises:
        NotImplementedError: A tensor that a function captures requires a gradient; or
            ``return_aux`` asks for ``max_scores``.
    """
    check_dimensions(_SIZES, query=query, key=key, value=value)
    check_heads(enable_gqa, query, key)
    check_flags(return_lse=return_lse)
    if kernel_options:
        raise ValueError(
            f"kernel_options is {kernel_options!r}; these are options of torch's kernels: pass None"
        )
    if return_aux is not None:
        _check_request(return_aux, return_lse)
    query, key, value = cast_by_autocast(query, key, value)
    query, scale = with_positive_scale(query, scale)
    if block_mask is not None and key.shape[0] == value.shape[0] == 1 != query.shape[0]:
        key, value = (t.expand(query.shape[0], -1, -1, -1) for t in (key, value))
    o: Any = attend_any_head(
        *(t.transpose(1, 2) for t in (query, key, value)),
        softmax_scale=scale,
        score_mod=score_mod,
        block_mask=block_mask,
        return_lse=return_lse or (return_aux is not None and return_aux.lse),
    )
    o, lse = o if isinstance(o, tuple) else (o, None)
    o = o.transpose(1, 2)
    if return_aux is not None:
        return o, _output(lse)
    return (o, lse) if return_lse else o


def _check_request(return_aux: AuxRequest, return_lse: bool) -> None:
    from torch.nn.attention.flex_attention import AuxRequest  # it takes a while to import

    if not isinstance(return_aux, AuxRequest):
        raise TypeError(
            f"return_aux is a {type(return_aux).__name__}; expected an AuxRequest of "
            "torch.nn.attention.flex_attention, or None"
        )
    if return_lse:
        raise ValueError("return_lse is True and return_aux is given; pass return_aux alone")
    if return_aux.max_scores:
        raise NotImplementedError(
            "return_aux asks for max_scores, which kernels do not keep; ask for lse alone"
        )


def _output(lse: torch.Tensor | None) -> AuxOutput:
    from torch.nn.attention.flex_attention import AuxOutput

    return AuxOutput(lse=lse)
