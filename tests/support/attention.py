"""Computes ``flashsmith.attention`` in plain torch, in place of kernels in tests of its callers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashsmith.mods.evaluate import evaluate
from flashsmith.mods.registry import expression_of
from flashsmith.mods.trace import Mods
from flashsmith.ops import attention, operators
from flashsmith.ops.forward import run_attention
from flashsmith.ops.spec import AttentionSpec
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
    """Computes in float32, and rounds the result once."""
    o, lse = reference_varlen(q, k, v, compute=torch.float32, **keywords)
    result = o.to(q.dtype) if out is None else out.copy_(o)
    return (result, lse) if return_lse else result


def keywords_of(spec: AttentionSpec) -> dict[str, Any]:
    """Returns the keywords of a call that gives this spec; defaults are left out."""
    defaults = AttentionSpec._field_defaults
    return {
        name: each
        for name, each in spec._asdict().items()
        if isinstance(each, torch.Tensor) or each != defaults[name]
    }


def _with_functions(semantics: dict[str, Any]) -> dict[str, Any]:
    """Returns the keywords of a call, with functions that evaluate the caller's traced ones."""
    number, captured = semantics.pop("score", 0), semantics.pop("mod_tensors", None)
    for name in ("key_ranges", "rows_per_range"):
        semantics.pop(name, None)
    if number == 0:
        return semantics
    mods = Mods(expression_of(number), tuple(captured or ()))

    def value(root: int, names: tuple[str, ...]) -> Callable[..., torch.Tensor]:
        return lambda *inputs: evaluate(mods, root, dict(zip(names, inputs, strict=True)))

    if mods.expression.score is not None:
        semantics["score_mod"] = value(mods.expression.score, ("score", "b", "h", "q", "kv"))
    if mods.expression.visible is not None:
        semantics["mask_mod"] = value(mods.expression.visible, ("b", "h", "q", "kv"))
    return semantics


def replace_attention(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    """Makes a function of ``attention``'s keywords compute all launches, in direct calls and in
    operators."""
    signature = inspect.signature(run_attention)

    def run(*arguments: Any) -> Any:
        given = signature.bind(*arguments).arguments
        q, k, v = (given.pop(name) for name in "qkv")
        keywords = _with_functions(keywords_of(given.pop("spec")))
        return function(q, k, v, **given, **keywords)

    for module in (attention, operators):
        monkeypatch.setattr(module, "run_attention", run)
