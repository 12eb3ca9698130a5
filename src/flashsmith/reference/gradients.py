"""The gradients of attention in plain torch: the reference for backward kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from flashsmith.reference.scores import log_sum_exp, scores, shared_heads, weights
from flashsmith.reference.semantics import Semantics


@dataclass(frozen=True, eq=False)
class ReferenceGradients:
    """The gradients of a loss by q, k and v, and by sinks and bias if there are any; each has the
    layout of its tensor."""

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
) -> ReferenceGradients:
    """Returns the gradients of ``reference_attention`` and ``reference_lse``, in ``compute``.

    The formulas are those of kernels (FlashAttention-2, section 3.1, algorithm 2), so that queries
    that see no key give zeros, where torch's gradient of their softmax is NaN. With the weights P,
    dP = dO V^T and D the row sums of P dP, dS = P (dP - D + dlse), which autograd then takes back
    through the scores. Dropout sets the dropped elements of dP, and of P before V, to 0.

    Args:
        q, k, v: See ``reference_attention``.
        do: (batch, seq_len_q, heads, d_v), the gradient of the loss by o.
        dlse: (batch, heads, seq_len_q), the gradient of the loss by the log-sum-exp; None: 0.
        compute: float64 or float32 for the truth; the tensors' dtype to measure the error of the
            same computation in low precision.
        semantics: The fields of ``Semantics``.
    """
    return _gradients(q, k, v, do, dlse, compute, Semantics(**semantics))


def gradients_with_rounded_weights(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    *,
    dlse: torch.Tensor | None = None,
    **semantics: Any,
) -> ReferenceGradients:
    """Computes gradients with P, dS and o rounded to q's dtype and all else in float32: the error
    that no kernel avoids.

    ``reference_gradients`` in q's dtype rounds the scores too; this bound is tighter where scores
    are large, and overflows only where kernels do.

    Args: See ``reference_gradients``.
    """
    meaning = Semantics(**semantics)
    return _gradients(q, k, v, do, dlse, torch.float32, meaning, rounded_to=q.dtype)


def gradient_allowance(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    errors: torch.Tensor,
    *,
    dlse: torch.Tensor | None = None,
    **semantics: Any,
) -> ReferenceGradients:
    """Returns how much gradients change at most if each query's terms have a relative error.

    It is the sum of a gradient with all signs positive, because errors do not cancel when terms do.

    Args:
        q, k, v, do, dlse, semantics: See ``reference_gradients``. A ``score_mod`` is assumed to
            have slopes up to 1.
        errors: (batch, heads, seq_len_q), the relative errors.
    """
    meaning = Semantics(**semantics)
    scale = q.shape[-1] ** -0.5 if meaning.softmax_scale is None else meaning.softmax_scale
    s = scores(q, k, meaning, torch.float32)
    p = weights(s, meaning)
    by_o = do.transpose(1, 2).float().abs()
    dp = meaning.dropped(by_o @ shared_heads(v, q).float().abs().transpose(-1, -2))
    pull = (p * dp).sum(-1, keepdim=True)
    if dlse is not None:
        pull = pull + dlse[..., None].float().abs()
    share = errors[..., None].float()
    ds = p * (dp + pull) * share
    by_sinks = _by_sinks(s, -pull * share, meaning)
    dq = ds @ shared_heads(k, q).float().abs()
    return ReferenceGradients(
        q=scale * dq.transpose(1, 2),
        k=scale * _summed_by_head(ds.transpose(-1, -2) @ q.transpose(1, 2).float().abs(), k),
        v=_summed_by_head((meaning.dropped(p) * share).transpose(-1, -2) @ by_o, v),
        sinks=by_sinks,
        bias=None if meaning.bias is None else ds.sum_to_size(meaning.bias.shape),
    )


def _gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    dlse: torch.Tensor | None,
    compute: torch.dtype,
    meaning: Semantics,
    rounded_to: torch.dtype | None = None,
) -> ReferenceGradients:
    """Computes the gradients; rounds P, dS and o to the dtype ``rounded_to`` if it is given."""

    def rounded(t: torch.Tensor) -> torch.Tensor:
        return t if rounded_to is None else t.to(rounded_to).to(compute)

    leaves = {"q": q, "k": k, "v": v}
    if meaning.bias is not None:
        leaves["bias"] = meaning.bias
    leaves = {name: t.detach().to(compute).requires_grad_() for name, t in leaves.items()}
    meaning = replace(meaning, bias=leaves.get("bias"))
    with torch.enable_grad():
        s = scores(leaves["q"], leaves["k"], meaning, compute)
        p = weights(s.detach(), meaning)
        o = meaning.dropped(rounded(p)) @ shared_heads(leaves["v"], q)
    values = shared_heads(leaves["v"].detach(), q)
    by_o = do.transpose(1, 2).to(compute)
    dp = meaning.dropped(by_o @ values.transpose(-1, -2))
    result = o.detach() if rounded_to is None else rounded(meaning.dropped(p) @ values)
    pull = (by_o * result).sum(-1, keepdim=True)  # D minus the log-sum-exp's gradient
    if dlse is not None:
        pull = pull - dlse[..., None].to(compute)
    (dv,) = torch.autograd.grad(o, leaves.pop("v"), by_o)
    found = torch.autograd.grad(s, [*leaves.values()], rounded(p * (dp - pull)))
    return ReferenceGradients(
        v=dv, sinks=_by_sinks(s.detach(), pull, meaning), **dict(zip(leaves, found, strict=True))
    )


def _summed_by_head(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Sums (batch, heads, seq_len, d) over the heads that share a head of ``like``, in its
    layout."""
    batch, heads, seq_len, d = t.shape
    heads_kv = like.shape[2]
    by_head = t.reshape(batch, heads_kv, heads // max(heads_kv, 1), seq_len, d)
    return by_head.sum(2).transpose(1, 2)


def _by_sinks(s: torch.Tensor, pull: torch.Tensor, semantics: Semantics) -> torch.Tensor | None:
    """Returns the gradient by the sinks, scores whose value is 0; a sink of -inf has weight 0, even
    alone in its row."""
    if semantics.sinks is None:
        return None
    lse = log_sum_exp(s, semantics)
    p = (semantics.sinks.to(s.dtype)[None, :, None] - lse).exp().masked_fill(lse.isneginf(), 0)
    return -(p * pull[..., 0]).sum((0, 2))
