"""The gradients of attention in plain torch: what backward kernels are compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from flashsmith.reference.scores import log_sum_exp, scores, shared_heads, weights
from flashsmith.reference.semantics import Semantics


@dataclass(frozen=True, eq=False)
class ReferenceGradients:
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
) -> ReferenceGradients:
    """Returns the gradients of ``reference_attention`` and ``reference_lse``, in ``compute``.

    By the formulas that kernels use (FlashAttention-2, section 3.1, algorithm 2), so that queries
    that see no key give zeros, where torch's own gradient of their softmax is NaN: with P the
    weights, dP = dO V^T, and D the row sums of P dP, dS = P (dP - D + dlse), which then goes back
    through all that makes a score. Dropout takes what it drops out of dP, and of P before V.

    Args:
        q, k, v: As ``reference_attention``.
        do: (batch, seq_len_q, heads, d_v), the gradient by o.
        dlse: (batch, heads, seq_len_q), the gradient by the log-sum-exp; None: 0.
        compute: float64 or float32 for the truth; the tensors' own dtype for what the same
            computation loses in low precision.
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
    """Returns what a kernel cannot do without losing: P, dS and o in q's dtype, all else in
    float32.

    Beside ``reference_gradients`` in q's dtype, which rounds the scores too, it allows little where
    scores are large, and overflows nowhere else than kernels do.

    Args: as ``reference_gradients``.
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
    """By how much gradients move, at most, if what a query adds to them is off by a share.

    The sums of a gradient with all signs positive: what cancels there may be off by as much as what
    does not.

    Args:
        q, k, v, do, dlse, semantics: As ``reference_gradients``. A ``score_mod`` is taken to be no
            steeper than 1.
        errors: (batch, heads, seq_len_q), the shares.
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
    """rounded_to: What P, dS and o are rounded to; None: they are not."""

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
    pull = (by_o * result).sum(-1, keepdim=True)  # D, less the log-sum-exp's gradient
    if dlse is not None:
        pull = pull - dlse[..., None].to(compute)
    (dv,) = torch.autograd.grad(o, leaves.pop("v"), by_o)
    found = torch.autograd.grad(s, [*leaves.values()], rounded(p * (dp - pull)))
    return ReferenceGradients(
        v=dv, sinks=_by_sinks(s.detach(), pull, meaning), **dict(zip(leaves, found, strict=True))
    )


def _summed_by_head(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(batch, heads, seq_len, d) as a tensor of fewer heads, which share them, is laid out."""
    batch, heads, seq_len, d = t.shape
    heads_kv = like.shape[2]
    by_head = t.reshape(batch, heads_kv, heads // max(heads_kv, 1), seq_len, d)
    return by_head.sum(2).transpose(1, 2)


def _by_sinks(s: torch.Tensor, pull: torch.Tensor, semantics: Semantics) -> torch.Tensor | None:
    """A sink is a score whose value is 0; one of -inf has no weight, not even alone."""
    if semantics.sinks is None:
        return None
    lse = log_sum_exp(s, semantics)
    p = (semantics.sinks.to(s.dtype)[None, :, None] - lse).exp().masked_fill(lse.isneginf(), 0)
    return -(p * pull[..., 0]).sum((0, 2))
