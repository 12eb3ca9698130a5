"""Attention to no keys, for which no kernel is launched."""

from __future__ import annotations

import math

import torch

from flashsmith.runtime import CallArgs


def attend_no_keys(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None,
    extras: CallArgs,
    o_dtype: torch.dtype,
    with_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns o and lse if no query sees anything but a sink; rows outside all sequences see none.

    Raises:
        ValueError: k and v, or o, do not fit each other.
    """
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(
            f"v has shape {tuple(v.shape)}, but k has {tuple(k.shape)}; they need the same batch "
            "size, seq_len_k and n_heads_kv"
        )
    *batch, seq_len, n_heads, _ = q.shape
    shape = *batch, seq_len, n_heads, v.shape[-1]
    if o is None:
        o = q.new_empty(shape, dtype=o_dtype)
    elif o.shape != shape:
        raise ValueError(f"o has shape {tuple(o.shape)}, but q and v make a result of {shape}")
    o.zero_()
    if not with_lse:
        return o, None
    lse = q.new_full((*batch, n_heads, seq_len), -math.inf, dtype=torch.float32)
    if extras.sinks is not None:
        of_sinks = extras.sinks[:, None]
        lse.copy_(of_sinks.where(_used_rows(extras, q), lse))
    return o, lse


def _used_rows(extras: CallArgs, q: torch.Tensor) -> torch.Tensor:
    """Returns whether each row of q belongs to a sequence: (batch or 1, 1, rows), or (1, total)."""
    offsets, used = extras.cu_seqlens_q, extras.seqused_q
    n_rows = q.shape[-3]
    rows = torch.arange(n_rows, dtype=torch.int32, device=q.device)
    if offsets is None:
        ends = rows.new_full((1,), n_rows) if used is None else used
        return (rows < ends[:, None])[:, None]
    if len(offsets) < 2:  # there are no sequences
        return (rows < 0)[None]
    sequence = torch.searchsorted(offsets[1:], rows, right=True).clamp_(max=len(offsets) - 2)
    ends = offsets[1:] if used is None else offsets[:-1] + used
    is_used: torch.Tensor = (rows >= offsets[sequence]) & (rows < ends[sequence])
    return is_used[None]
