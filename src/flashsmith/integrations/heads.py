"""Heads of any size: kernels take multiples of 8, so others are padded with zeros."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from flashsmith.ops.attention import attention
from flashsmith.ops.decode import decode

_STEP = 8


def attend_any_head(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None = None,
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
    return _cut(result, d_v)


def decode_any_head(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    k_new: torch.Tensor | None,
    v_new: torch.Tensor | None,
    softmax_scale: float | None,
    **keywords: Any,
) -> Any:
    """``decode``, whose d_head and d_v need not be multiples of 8. The whole cache is copied where
    they are not, and where it is appended to, back again."""
    d_head, d_v = q.shape[-1], v_cache.shape[-1]
    new: dict[str, Any] = {"k_new": k_new, "v_new": v_new}
    if not d_head % _STEP and not d_v % _STEP:
        return decode(None, q, k_cache, v_cache, softmax_scale=softmax_scale, **new, **keywords)
    scale = d_head**-0.5 if softmax_scale is None else softmax_scale
    k, v = _padded(k_cache), _padded(v_cache)
    new = {name: None if t is None else _padded(t) for name, t in new.items()}
    result = decode(None, _padded(q), k, v, softmax_scale=scale, **new, **keywords)
    if k_new is not None:
        k_cache.copy_(k[..., :d_head])
        v_cache.copy_(v[..., :d_v])
    return _cut(result, d_v)


def _cut(result: Any, d_v: int) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Without what pads o; the log-sum-exp has nothing of it."""
    if isinstance(result, tuple):
        return result[0][..., :d_v], result[1]
    o: torch.Tensor = result[..., :d_v]
    return o


def _padded(t: torch.Tensor) -> torch.Tensor:
    missing = -t.shape[-1] % _STEP
    return F.pad(t, (0, missing)) if missing else t
