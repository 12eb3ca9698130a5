"""The gradients of attention in plain torch: what backward kernels are compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from flashsmith.reference.scores import log_sum_exp, scores, shared_heads, weights
from flashsmith.reference.semantics import Semantics


@dataclass(frozen=True, eq=False)
class Gradients:
    """Of a loss, by q, k and v, and by sinks and bias where there are some; laid out as these."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sinks: torch.Tensor | None = None
    bias: torch.Tensor | None = None


def reference_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    *,
    dlse: torch.Tensor | None = None,
    compute: torch.dtype = torch.float64,
    **semantics: Any,
) -> Gradients:
    """The gradients of ``reference_attention`` and ``reference_lse``, in ``compute``.

    By the formulas that kernels use (FlashAttention-2, section 3.1, algorithm 2), so that queries
    that see no key give zeros, where torch's own gradient of their softmax is NaN: with P the
    weights, dP = dO V^T and D the row sums of P dP, dS = P (dP - D + dlse), which then goes back
    through all that makes a score.

    Args:
        q, k, v: As ``reference_attention``.
        do: (batch, seq_len_q, heads, d_v), the gradient by o.
        dlse: (batch, heads, seq_len_q), the gradient by the log-sum-exp; None: 0.
        compute: float64 or float32 for the truth; the tensors' own dtype for what the same
            computation loses in low precision.
        semantics: The fields of ``Semantics``.
    """
    meaning = Semantics(**semantics)
    leaves = {"q": q, "k": k, "v": v}
    if meaning.bias is not None:
        leaves["bias"] = meaning.bias
    leaves = {name: t.detach().to(compute).requires_grad_() for name, t in leaves.items()}
    meaning = replace(meaning, bias=leaves.get("bias"))
    with torch.enable_grad():
        s = scores(leaves["q"], leaves["k"], meaning, compute)
        p = weights(s.detach(), meaning)
        o = p @ shared_heads(leaves["v"], q)
    by_o = do.transpose(1, 2).to(compute)
    dp = by_o @ shared_heads(leaves["v"].detach(), q).transpose(-1, -2)
    pull = (by_o * o.detach()).sum(-1, keepdim=True)  # D, less the log-sum-exp's gradient
    if dlse is not None:
        pull = pull - dlse[..., None].to(compute)
    (dv,) = torch.autograd.grad(o, leaves.pop("v"), by_o)
    found = torch.autograd.grad(s, [*leaves.values()], p * (dp - pull))
    return Gradients(
        v=dv, sinks=_by_sinks(s.detach(), pull, meaning), **dict(zip(leaves, found, strict=True))
    )


def _by_sinks(s: torch.Tensor, pull: torch.Tensor, semantics: Semantics) -> torch.Tensor | None:
    """A sink is a score whose value is 0."""
    if semantics.sinks is None:
        return None
    lse = log_sum_exp(s, semantics)
    p = (semantics.sinks.to(s.dtype)[None, :, None] - lse).exp()
    return -(p * pull[..., 0]).sum((0, 2))
