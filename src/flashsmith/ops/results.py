"""New tensors for the results of a call.

Torch makes a tensor like another faster than one of given sizes, which it would have to convert.
"""

from __future__ import annotations

import torch

_CONTIGUOUS = torch.contiguous_format
_MAX_SHAPES = 4096
# Templates of lse by q's shape and device: tensors with one element in memory.
_like_lse: dict[tuple[torch.Size, torch.device], torch.Tensor] = {}


def new_o(q: torch.Tensor, d_v: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns a contiguous tensor of q's shape, with rows of ``d_v`` elements."""
    if q.shape[-1] == d_v and q.dtype == dtype:
        return torch.empty_like(q, memory_format=_CONTIGUOUS)
    return q.new_empty((*q.shape[:-1], d_v), dtype=dtype)


def new_lse(q: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous float32 tensor, (batch, n_heads, seq_len), or (n_heads, total) for
    packed rows of q."""
    key = q.shape, q.device
    like = _like_lse.get(key)
    if like is None:
        *batch, seq_len, n_heads, _ = q.shape
        if len(_like_lse) >= _MAX_SHAPES:
            _like_lse.clear()
        like = q.new_empty(1, dtype=torch.float32).expand(*batch, n_heads, seq_len)
        _like_lse[key] = like
    return torch.empty_like(like, memory_format=_CONTIGUOUS)
