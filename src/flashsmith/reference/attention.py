"""Attention in plain torch, in float64 or low precision: the reference for kernels."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import torch

from flashsmith.reference.scores import log_sum_exp, scores, shared_heads, weights
from flashsmith.reference.semantics import Semantics


def reference_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    compute: torch.dtype = torch.float64,
    **semantics: Any,
) -> torch.Tensor:
    """Computes softmax(q k^T * scale) v in plain torch, in ``compute``.

    Args:
        q: (batch, seq_len_q, heads, d_head).
        k: (batch, seq_len_k, heads_kv, d_head); neighbouring heads of q share a head of k.
        v: (batch, seq_len_k, heads_kv, d_v).
        compute: float64 or float32 for the truth; the tensors' dtype to measure the error of the
            same computation in low precision.
        semantics: The fields of ``Semantics``. A query that sees no key gives 0.

    Returns:
        (batch, seq_len_q, heads, d_v).
    """
    meaning = Semantics(**semantics)
    p = meaning.dropped(weights(scores(q, k, meaning, compute), meaning))
    return (p @ shared_heads(v, q).to(compute)).transpose(1, 2)


def reference_lse(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    compute: torch.dtype = torch.float64,
    **semantics: Any,
) -> torch.Tensor:
    """Returns the log-sum-exp of each query, (batch, heads, seq_len_q).

    Args: See ``reference_attention``. A query that sees no key has -inf, or the logit of its sink;
    a query with a score of inf has NaN, because its softmax is undefined.
    """
    meaning = Semantics(**semantics)
    s = scores(q, k, meaning, compute)
    return log_sum_exp(s, meaning).masked_fill(s.isposinf().any(-1), math.nan)


def attention_with_rounded_weights(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    weights_in: torch.dtype | None = None,
    **semantics: Any,
) -> torch.Tensor:
    """Computes attention with rounded weights and all else in float32: the error no kernel avoids.

    ``reference_attention`` in q's dtype rounds the scores too; this bound is tighter where scores
    are large.

    Args, returns: see ``reference_attention``; the result is float32.
        weights_in: The weights' dtype; None: q's. For float8_e4m3fn they are scaled so that a row's
            largest is 2^8, which is exact.
    """
    meaning, dtype = Semantics(**semantics), weights_in or q.dtype
    p = weights(scores(q, k, meaning, torch.float32), meaning)
    unit = torch.ones((), device=q.device)
    if dtype == torch.float8_e4m3fn and p.shape[-1]:
        unit = p.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / 2**8
    p = meaning.dropped((p / unit).to(dtype).float() * unit)
    return (p @ shared_heads(v, q).float()).transpose(1, 2)


def lse_tolerance(
    exact: torch.Tensor, error_of_scores: torch.Tensor, seq_len_k: int, error_of_exp: float = 0.0
) -> torch.Tensor:
    """Returns how far a log-sum-exp in float32 may be from the exact one.

    The scores' error passes unchanged. A sum of positive numbers is off by at most 2^-24 an
    addition (a lane adds a quarter of the row), and so is its logarithm; the instructions for 2^x
    and log2 are off by 2^-22; the result is rounded a few times. A relative error of the
    exponentials themselves passes at most unchanged.

    Args:
        exact: ``reference_lse``.
        error_of_scores: ``score_error``.
        error_of_exp: The relative error of polynomials that replace the instruction.
    """
    rounding = 2.0**-24
    sums = (seq_len_k / 4 + 16) * rounding
    logarithms = 4 * rounding * exact.abs().nan_to_num(posinf=0, neginf=0)
    return error_of_scores.to(exact.dtype) + logarithms + sums + error_of_exp


def reference_by_head(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    compute: torch.dtype = torch.float64,
    **semantics: Any,
) -> torch.Tensor:
    """Computes ``reference_attention`` a head at a time: all scores may not fit in memory."""
    meaning = Semantics(**semantics)
    o = torch.empty(*q.shape[:3], v.shape[3], dtype=compute, device=q.device)
    sharing = q.shape[2] // k.shape[2]
    for batch, head in product(range(q.shape[0]), range(q.shape[2])):
        sample, own = slice(batch, batch + 1), slice(head, head + 1)
        shared = slice(head // sharing, head // sharing + 1)
        o[sample, :, own] = reference_attention(
            q[sample, :, own],
            k[sample, :, shared],
            v[sample, :, shared],
            compute=compute,
            **meaning.part(sample, own).keywords,
        )
    return o
