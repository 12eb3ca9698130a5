"""Computes attention and decode in plain torch, for any dtype, in place of kernels."""

from __future__ import annotations

from typing import Any

import torch

from flashsmith.ops.decode_call import DecodeCall, DecodeOptions
from flashsmith.reference import reference_varlen


def by_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    out: torch.Tensor | None = None,
    **keywords: Any,
) -> torch.Tensor:
    """Computes ``attention`` in float32, and returns it in q's dtype."""
    return reference_varlen(q, k, v, compute=torch.float32, **keywords)[0].to(q.dtype)


def decode_by_reference(
    asked: DecodeOptions, call: DecodeCall
) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """Computes ``run_decode`` for a cache without pages, with padding on the left or none."""
    cache, pads = call.cache, call.cache.leftpad
    assert cache.seqlens is cache.block_table is cache.batch_idx is call.new is None
    keywords = {
        "causal": asked.causal, "window_size": asked.window_size, "softcap": asked.softcap,
        "softmax_scale": asked.softmax_scale, "sinks": call.sinks,
    }  # fmt: skip
    if pads is not None:
        keywords["mask_mod"] = lambda b, h, q, kv: kv >= pads[b]
    return by_reference(call.q, cache.k, cache.v, **keywords), None, 0.0
