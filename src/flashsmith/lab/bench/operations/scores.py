"""Modifications of scores, for flashsmith and for FlexAttention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from flashsmith.problem import Problem

SCORES = (
    *("plain", "softcap", "alibi", "sinks", "bias"),
    *(f"score_mod: {what}" for what in ("plain", "softcap", "alibi", "a factor", "bias")),
)


def score_arguments(score: str, problem: Problem, device: str) -> dict[str, Any]:
    """Returns ``attention``'s arguments for one of ``SCORES``. Raises KeyError: It is not one."""
    heads = problem.heads
    slopes, sinks = torch.rand(heads, device=device), torch.randn(heads, device=device)

    def bias() -> torch.Tensor:
        shape = (1, heads, problem.seq_len_q, problem.seq_len_k)
        return torch.randn(shape, device=device, dtype=problem.dtype.to_torch_dtype())

    match score:
        case "score_mod: bias":
            return _added(bias())
        case "bias":
            return {"bias": bias()}
    arguments: dict[str, dict[str, Any]] = {
        "plain": {},
        "softcap": {"softcap": 30.0},
        "alibi": {"alibi_slopes": slopes},
        "sinks": {"sinks": sinks},
        "score_mod: plain": {},
        "score_mod: softcap": {"score_mod": lambda s, _b, _h, _i, _j: 30.0 * torch.tanh(s / 30.0)},
        "score_mod: alibi": {"score_mod": lambda s, _b, h, i, j: s - slopes[h] * (i - j).abs()},
        "score_mod: a factor": {
            "score_mod": lambda s, _b, _h, _i, j: torch.where(j % 2 == 0, s, 0.5 * s)
        },
    }
    return arguments[score]


def flex_score_mod(semantics: Mapping[str, Any]) -> Any:
    """Returns FlexAttention's function for the ``score_mod`` or the bias of ``attention``."""
    bias = semantics.get("bias")
    return semantics.get("score_mod") if bias is None else _added(bias)["score_mod"]


def _added(bias: torch.Tensor) -> dict[str, Any]:
    return {"score_mod": lambda s, _b, h, i, j: s + bias[0, h, i, j]}
