"""Heads of any size: kernels take multiples of 8, so others are padded with zeros."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from flashsmith.ops.attention import attention

_STEP = 8


def attend_any_head(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None,
    out: torch.Tensor | None = None,
    **keywords: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``attention``, whose d_head and d_v need not be multiples of 8."""
    d_head, d_v = q.shape[-1], v.shape[-1]
    if not d_head % _STEP and not d_v % _STEP:
        return attention(q, k, v, softmax_scale=softmax_scale, out=out, **keywords)
    if out is not None:
        raise ValueError(
            f"out is given, and the heads have {d_head} and {d_v} elements; writing into a tensor "
            f"needs multiples of {_STEP}"
        )
    scale = d_head**-0.5 if softmax_scale is None else softmax_scale
    result = attention(_padded(q), _padded(k), _padded(v), softmax_scale=scale, **keywords)
    if isinstance(result, tuple):
        return result[0][..., :d_v], result[1]
    return result[..., :d_v]


def _padded(t: torch.Tensor) -> torch.Tensor:
    missing = -t.shape[-1] % _STEP
    return F.pad(t, (0, missing)) if missing else t
