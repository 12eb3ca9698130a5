"""What is done to scores, for flashsmith and for FlexAttention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from flashsmith.lab.bench.operations.base import Run
from flashsmith.problem import Problem

SCORES = (
    *("plain", "softcap", "alibi", "sinks", "bias"),
    *(f"score_mod: {what}" for what in ("plain", "softcap", "alibi", "a factor", "bias")),
)


def score_arguments(score: str, problem: Problem, device: str) -> dict[str, Any]:
    """The arguments of ``attention`` for one of ``SCORES``. Raises KeyError: It is none."""
    heads = problem.heads
    slopes, sinks = torch.rand(heads, device=device), torch.randn(heads, device=device)

    def bias() -> torch.Tensor:
        shape = (1, heads, problem.seq_len_q, problem.seq_len_k)
        return torch.randn(shape, device=device, dtype=problem.dtype.to_torch_dtype())

    def added(bias: torch.Tensor) -> dict[str, Any]:
        return {"score_mod": lambda s, _b, h, i, j: s + bias[0, h, i, j]}

    match score:
        case "score_mod: bias":
            return added(bias())
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


def flex_run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, semantics: Mapping[str, Any]
) -> Run:
    """FlexAttention, causal and compiled by torch, with the ``score_mod`` or the bias of what
    ``attention`` is given."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    score_mod = semantics.get("score_mod")
    if (bias := semantics.get("bias")) is not None:
        score_mod = lambda s, _b, h, i, j: s + bias[0, h, i, j]  # noqa: E731
    torch.compiler.reset()
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    n, device = q.shape[1], str(q.device)
    mask = create_block_mask(lambda _b, _h, i, j: i >= j, None, None, n, n, device=device)
    heads_first = [t.transpose(1, 2) for t in (q, k, v)]
    return lambda: compiled(*heads_first, score_mod=score_mod, block_mask=mask).transpose(1, 2)
