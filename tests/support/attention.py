"""``flashsmith.attention`` in plain torch: what stands in for kernels in tests of what calls it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashsmith.ops import attention, operators
from flashsmith.ops.forward import run_attention
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


def replace_attention(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    """Has what is launched computed by a function of ``attention``'s keywords, in direct calls and
    in operators."""
    signature = inspect.signature(run_attention)

    def run(*arguments: Any) -> Any:
        given = signature.bind(*arguments).arguments
        q, k, v = (given.pop(name) for name in "qkv")
        semantics = given.pop("semantics") or {}
        return function(q, k, v, **given, **semantics)

    for module in (attention, operators):
        monkeypatch.setattr(module, "run_attention", run)
