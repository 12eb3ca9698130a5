"""What a kernel's result is compared with, and how much it may differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Comparison:
    """A result against the reference."""

    error: float  # at the element that is worst beside what it may differ by
    tolerance: float
    worst: str  # where, and both values

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance


def compare(
    o: torch.Tensor,
    exact: torch.Tensor,
    low_precision: torch.Tensor,
    allowance: torch.Tensor | float = 0.0,
) -> Comparison:
    """Compares o with the reference, by the rule of the FlashAttention test suites.

    The largest error may be twice that of the same computation in plain low-precision torch, plus
    twice what rounding the exact result to o's dtype costs, both over the elements that are finite
    in o's dtype.

    NaN has to be where the exact result is NaN, and nowhere else. Infinity has to be, with its
    sign, where the exact result is infinite or o's dtype overflows. A value that close to the
    largest number of the dtype that the tolerance reaches beyond may be either.

    Args:
        o: The kernel's result, float16 or bfloat16.
        exact: ``reference_attention`` in float64 or float32.
        low_precision: ``reference_attention`` in o's dtype.
        allowance: What an element may differ by beyond that, of a shape that fits o's.
    """
    rounded = exact.to(o.dtype).to(exact.dtype)
    low = low_precision.to(exact.dtype)
    rounding = _largest((rounded - exact).abs(), rounded.isfinite())
    allowed = _largest((low - exact).abs(), rounded.isfinite() & low.isfinite())
    return _worst(o, exact, _differences(o, exact), 2 * allowed + 2 * rounding + allowance)


def compare_lse(lse: torch.Tensor, exact: torch.Tensor, tolerance: torch.Tensor) -> Comparison:
    """Compares a log-sum-exp with the reference; NaN and infinities as in ``compare``.

    Args:
        lse: The kernel's, (batch, n_heads, seq_len_q), float32.
        exact: ``reference_lse`` in float64.
        tolerance: ``lse_tolerance``.
    """
    return _worst(lse, exact, _differences(lse, exact), tolerance)


def _largest(values: torch.Tensor, counted: torch.Tensor) -> float:
    """Of the values that count; 0 if none does."""
    return values.where(counted, 0).max().item() if values.numel() else 0.0


def _differences(result: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """How far each element of the result is from an exact one that it would be right for.

    Infinity is right for whatever is at or beyond the first value that rounds to it.
    """
    info = torch.finfo(result.dtype)
    overflow = info.max * ((2 - info.eps / 2) / (2 - info.eps))
    found = result.to(exact.dtype)
    short_of_it = (overflow - exact * found.sign()).clamp(min=0)
    difference = torch.where(found.isinf(), short_of_it, (found - exact).abs())
    both_nan = found.isnan() & exact.isnan()
    return difference.nan_to_num(nan=math.inf).masked_fill(both_nan, 0)


def _worst(
    result: torch.Tensor,
    exact: torch.Tensor,
    difference: torch.Tensor,
    tolerance: torch.Tensor | float,
) -> Comparison:
    if result.numel() == 0:
        return Comparison(0.0, 0.0, "there are no elements")
    tolerances = torch.as_tensor(tolerance, dtype=difference.dtype, device=difference.device)
    tolerances = tolerances.expand_as(difference)
    # Where both are 0 the element is right; infinities have no ratio that orders them.
    ratio = (difference / tolerances.clamp(min=torch.finfo(difference.dtype).tiny)).nan_to_num(
        nan=math.inf
    )
    flat = torch.tensor(int(ratio.argmax()))
    index = tuple(int(i) for i in torch.unravel_index(flat, result.shape))
    return Comparison(
        error=difference[index].item(),
        tolerance=tolerances[index].item(),
        worst=f"at {index}: got {result[index].item():.6g}, expected {exact[index].item():.6g}",
    )
