"""torch's flex_attention, by flashsmith's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flashsmith.integrations.arguments import check_dimensions, check_heads
from flashsmith.ops.attention import attention
from flashsmith.ops.checks import check_flags

_SIZES = ("batch", "heads", "seq_len", "d_head")


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
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """torch.nn.attention.flex_attention.flex_attention, by flashsmith's kernels.

    Differentiable by query, key and value, and by the log-sum-exp, too.

    Args:
        query: (batch, heads, seq_len_q, d_head), float16 or bfloat16.
        key: (batch, heads_kv, seq_len_k, d_head).
        value: (batch, heads_kv, seq_len_k, d_v).
        score_mod: f(score, b, h, q_idx, kv_idx), the new score.
        block_mask: From torch's create_block_mask or flashsmith's.
        scale: None: 1 / sqrt(d_head).
        enable_gqa: heads may be a multiple of heads_kv.
        return_lse: Also return the log-sum-exp, float32 (batch, heads, seq_len_q).
        kernel_options: None; torch's are those of its Triton kernels.

    Returns:
        (batch, heads, seq_len_q, d_v), in memory (batch, seq_len_q, heads, d_v); with
        ``return_lse`` also the log-sum-exp.

    Raises:
        NotImplementedError: A tensor that a function captures requires a gradient.
    """
    check_dimensions(_SIZES, query=query, key=key, value=value)
    check_heads(enable_gqa, query, key)
    check_flags(return_lse=return_lse)
    if kernel_options:
        raise ValueError(
            f"kernel_options is {kernel_options!r}; these are options of torch's kernels: pass None"
        )
    result = attention(
        *(t.transpose(1, 2) for t in (query, key, value)),
        softmax_scale=scale,
        score_mod=score_mod,
        block_mask=block_mask,
        return_lse=return_lse,
    )
    if isinstance(result, tuple):
        return result[0].transpose(1, 2), result[1]
    return result.transpose(1, 2)
