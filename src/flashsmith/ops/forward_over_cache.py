"""Runs a call of ``decode`` by the forward's kernels, for many queries, whose products take longer
than reading the keys."""

from __future__ import annotations

from typing import Any

import torch

from flashsmith.ops.forward import run_attention
from flashsmith.ops.kv_cache import KVCache
from flashsmith.ops.spec import AttentionSpec


def run_over_cache(
    q: torch.Tensor,
    cache: KVCache,
    spec: AttentionSpec,
    out: torch.Tensor | None,
    with_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns o and lse, with the shapes of ``decode``, over a cache that holds the new keys
    already.

    spec: A specification without lengths and pages.
    """
    lengths: dict[str, Any] = {"seqused_k": cache.seqlens}
    n_requests, n_q = q.shape[:2]
    if cache.block_table is not None:
        q, out = q.flatten(0, 1), None if out is None else out.flatten(0, 1)
        lengths |= {
            "block_table": cache.block_table,
            "cu_seqlens_q": torch.arange(
                0, n_requests * n_q + 1, n_q, dtype=torch.int32, device=q.device
            ),
            "max_seqlen_q": n_q,
            "max_seqlen_k": cache.rows,
        }
        if cache.seqlens is None:
            lengths["seqused_k"] = q.new_full((n_requests,), cache.rows, dtype=torch.int32)
    spec = spec._replace(**lengths)
    found: Any = run_attention(q, cache.k, cache.v, spec, out, return_lse=with_lse)
    o, lse = found if with_lse else (found, None)
    if cache.block_table is None:
        return o, lse
    if lse is not None:
        lse = lse.unflatten(1, (n_requests, n_q)).transpose(0, 1).contiguous()
    return o.unflatten(0, (n_requests, n_q)), lse
