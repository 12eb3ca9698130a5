"""``flashsmith.attention`` in plain torch: what stands in for kernels in tests of what calls it."""

from __future__ import annotations

from typing import Any

import torch

from flashsmith.reference import reference_varlen


def attention_by_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    config: object = None,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
    **keywords: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """All in float32, rounded once."""
    o, lse = reference_varlen(q, k, v, compute=torch.float32, **keywords)
    result = o.to(q.dtype) if out is None else out.copy_(o)
    return (result, lse) if return_lse else result
