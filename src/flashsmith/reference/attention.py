"""Attention in plain torch, in float64 or low precision: what kernels are compared with."""

from __future__ import annotations

import math
from itertools import product

import torch


def reference_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    compute: torch.dtype = torch.float64,
) -> torch.Tensor:
    """softmax(q k^T * scale) v in plain torch, computed and returned in ``compute``.

    Args:
        q: (batch, seq_len_q, n_heads, d_head).
        k, v: (batch, seq_len_k, n_heads_kv, d_head); neighbouring heads of q share one of theirs.
        causal: Query i sees keys up to i + seq_len_k - seq_len_q; one that sees none gives 0.
        compute: float64 or float32 for the truth; the tensors' own dtype for what the same
            computation loses in low precision.
    """
    s = _scores(q, k, causal, softmax_scale, compute)
    p = s.softmax(-1).masked_fill(s.isneginf().all(-1, keepdim=True), 0)
    return (p @ _shared_heads(v, q).to(compute)).transpose(1, 2)


def reference_lse(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    compute: torch.dtype = torch.float64,
) -> torch.Tensor:
    """The logarithm of the sum of the exponentials, (batch, n_heads, seq_len_q).

    Args: as ``reference_attention``; -inf where a query sees no key, NaN where a score is inf: as
    there, that has no softmax.
    """
    s = _scores(q, k, causal, softmax_scale, compute)
    return s.logsumexp(-1).masked_fill(s.isposinf().any(-1), math.nan)


def attention_with_rounded_weights(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """What a kernel cannot do without losing: weights in q's dtype, all else in float32.

    Beside ``reference_attention`` in q's dtype, which rounds the scores too, it allows little where
    scores are large.

    Args, returns: as ``reference_attention``; in float32.
    """
    s = _scores(q, k, causal, softmax_scale, torch.float32)
    p = s.softmax(-1).masked_fill(s.isneginf().all(-1, keepdim=True), 0)
    return (p.to(q.dtype).float() @ _shared_heads(v, q).float()).transpose(1, 2)


def score_error(
    q: torch.Tensor, k: torch.Tensor, *, causal: bool = False, softmax_scale: float | None = None
) -> torch.Tensor:
    """A bound of the error of each query's scores, (batch, n_heads, seq_len_q), float32.

    The tensor cores sum 16 products at a time and cut off what lies 2^-22 below the largest, so a
    score of d_head / 16 such sums, the scale and one rounding beside is off by at most
    (d_head / 16 + 2) 2^-22 sum |q_i k_i| scale. Scores that are not finite bound nothing.
    """
    magnitudes = _scores(q.abs(), k.abs(), causal, softmax_scale, torch.float32)
    largest = magnitudes.where(magnitudes.isfinite(), 0).amax(-1)
    return (q.shape[-1] / 16 + 2) * 2.0**-22 * largest


def lse_tolerance(
    exact: torch.Tensor, error_of_scores: torch.Tensor, seq_len_k: int, error_of_exp: float = 0.0
) -> torch.Tensor:
    """How far a log-sum-exp in float32 may be from the exact one.

    The scores' error passes as it is. A sum of positive numbers is off by at most 2^-24 an addition
    (a lane adds a quarter of the row), and so is its logarithm; the instructions for 2^x and log2
    are off by 2^-22; the result is rounded a few times. Of an error of the exponentials themselves
    at most as much remains.

    Args:
        exact: ``reference_lse``.
        error_of_scores: ``score_error``.
        error_of_exp: Relative; of polynomials in place of the instruction.
    """
    rounding = 2.0**-24
    sums = (seq_len_k / 4 + 16) * rounding
    logarithms = 4 * rounding * exact.abs().nan_to_num(posinf=0, neginf=0)
    return error_of_scores.to(exact.dtype) + logarithms + sums + error_of_exp


def _scores(
    q: torch.Tensor, k: torch.Tensor, causal: bool, scale: float | None, compute: torch.dtype
) -> torch.Tensor:
    """(batch, n_heads, seq_len_q, seq_len_k), -inf where masked."""
    keys = _shared_heads(k, q).to(compute).transpose(-1, -2)
    s = q.transpose(1, 2).to(compute) @ keys * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        seq_len_q, seq_len_k = s.shape[-2:]
        visible = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device)
        s = s.masked_fill(~visible.tril(seq_len_k - seq_len_q), -math.inf)
    return s


def _shared_heads(t: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """k or v with as many heads as q has, heads before sequence."""
    return t.repeat_interleave(q.shape[2] // t.shape[2], dim=2).transpose(1, 2)


def reference_by_head(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    compute: torch.dtype = torch.float64,
) -> torch.Tensor:
    """As ``reference_attention``, a head at a time: all scores at once may not fit in memory."""
    o = torch.empty(q.shape, dtype=compute, device=q.device)
    sharing = q.shape[2] // k.shape[2]
    for batch, head in product(range(q.shape[0]), range(q.shape[2])):
        part, shared = _head(batch, head), _head(batch, head // sharing)
        o[part] = reference_attention(q[part], k[shared], v[shared], causal=causal, compute=compute)
    return o


def _head(batch: int, head: int) -> tuple[slice, slice, slice]:
    return slice(batch, batch + 1), slice(None), slice(head, head + 1)
