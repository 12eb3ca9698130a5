"""The scores of attention, and bounds of a kernel's errors in them."""

from __future__ import annotations

import math
from typing import Any

import torch

from flashsmith.reference.semantics import Semantics

# The largest relative error of the instruction tanh.approx.f32.
TANH_APPROX_ERROR = 2.0**-11
# FP8 tensor cores truncate each of 32 e4m3 products 2^-13 below the largest. The sum of numbers of
# one sign loses seldom more than 4 such units, because most products have few bits; the worst case
# is 33.
_CUTS_OF_FP8 = 6


def scores(
    q: torch.Tensor, k: torch.Tensor, semantics: Semantics, compute: torch.dtype
) -> torch.Tensor:
    """Returns (batch, heads, seq_len_q, seq_len_k) in ``compute``; -inf for a key that a query does
    not see."""
    s = semantics.modified(_products(q, k, semantics, compute)).to(compute)
    if semantics.softcap > 0:
        s = _capped(s, semantics.softcap)
    for addend in semantics.addends(s.shape, s.device):
        s = (s + addend).to(compute)
    return s.masked_fill(~semantics.visible(s.shape, s.device), -math.inf)


def weights(s: torch.Tensor, semantics: Semantics) -> torch.Tensor:
    """Returns the softmax of scores, with the sinks in the denominator; 0 in rows that see no
    key."""
    p = torch.cat([s, *_sink_column(s, semantics)], -1).softmax(-1)[..., : s.shape[-1]]
    return p.masked_fill(s.isneginf().all(-1, keepdim=True), 0)


def log_sum_exp(s: torch.Tensor, semantics: Semantics) -> torch.Tensor:
    """Returns the log-sum-exp of each row, its sink included: (batch, heads, seq_len_q)."""
    return torch.cat([s, *_sink_column(s, semantics)], -1).logsumexp(-1)


def score_error(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    tanh_error: float = 0.0,
    fp8: bool = False,
    **semantics: Any,
) -> torch.Tensor:
    """Returns a bound of the error that a query's scores bring into its log-sum-exp, in float32.

    The tensor cores sum 16 products at a time and truncate bits 2^-22 below the largest. A score
    has d_head / 16 such sums, the scale and one more rounding, so it is off by at most (d_head / 16
    + 2) 2^-22 sum |q_i k_i| scale. The softcap multiplies this error by its slope, which is close
    to 0 for large scores, and adds the errors of tanh and of a sum with 1 that may be part of it.
    ALiBi, the bias and the scores that they are added to are rounded up to four times.

    If every score s is off by at most e, their log-sum-exp is off by at most log sum(p exp(e)),
    where p are the weights, and each weight by a factor of at most the square of that sum. So an
    error counts by the weight of its key. Scores that are not finite are left out.

    Args:
        tanh_error: The relative error of the kernel's tanh; see ``TANH_APPROX_ERROR``.
        fp8: Whether q and k are e4m3: 32 products at a time, each truncated 2^-13 below the
            largest, so that a sum of numbers of one sign loses ``_CUTS_OF_FP8`` times that.
        semantics: The fields of ``Semantics``. A ``score_mod`` is assumed to pass errors unchanged.

    Returns:
        (batch, heads, seq_len_q).
    """
    meaning = Semantics(**semantics)
    s = meaning.modified(_products(q, k, meaning, torch.float64))
    magnitudes = _products(q.abs(), k.abs(), meaning, torch.float64).abs()
    at_once, cuts, cut_off = (32, _CUTS_OF_FP8, 2.0**-13) if fp8 else (16, 1, 2.0**-22)
    errors = (cuts * math.ceil(q.shape[-1] / at_once) + 2) * cut_off * magnitudes
    if meaning.softcap > 0:
        errors = _passed_by_cap(s, errors, meaning.softcap)
        s = _capped(s, meaning.softcap)
        errors = errors + tanh_error * s.abs() + 2.0**-22 * meaning.softcap
    addends = meaning.addends(s.shape, s.device)
    if addends:
        errors = errors + 2.0**-22 * sum((a.abs() for a in addends), s.abs())
    s = scores(q, k, meaning, torch.float64)
    p = weights(s, meaning)
    counted = s.isfinite() & errors.isfinite() & p.isfinite()
    # exp(80) exceeds every tolerance and fits in float32.
    grown = (p * errors.clamp(max=80).expm1()).where(counted, 0).sum(-1)
    return grown.log1p().float()


def score_range(q: torch.Tensor, k: torch.Tensor, **semantics: Any) -> torch.Tensor:
    """Returns the largest minus the smallest score of each query, (batch, heads, seq_len_q).

    Args: See ``score_error``. Only finite scores count.
    """
    s = scores(q, k, Semantics(**semantics), torch.float64)
    if s.shape[-1] == 0:
        return s.new_zeros(s.shape[:-1])
    finite = s.isfinite()
    largest = s.where(finite, -math.inf).amax(-1)
    smallest = s.where(finite, math.inf).amin(-1)
    return (largest - smallest).clamp(min=0)


def shared_heads(t: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Returns k or v with as many heads as q has, heads before sequence."""
    return t.repeat_interleave(q.shape[2] // max(t.shape[2], 1), dim=2).transpose(1, 2)


def _products(
    q: torch.Tensor, k: torch.Tensor, semantics: Semantics, compute: torch.dtype
) -> torch.Tensor:
    scale = semantics.softmax_scale
    keys = shared_heads(k, q).to(compute).transpose(-1, -2)
    products = q.transpose(1, 2).to(compute) @ keys
    return products * (q.shape[-1] ** -0.5 if scale is None else scale)


def _capped(s: torch.Tensor, cap: float) -> torch.Tensor:
    return cap * (s / cap).tanh()


def _passed_by_cap(s: torch.Tensor, errors: torch.Tensor, cap: float) -> torch.Tensor:
    """Returns how much the capped scores change at most if the scores change by ``errors``. An
    infinite score does not change."""
    up = _capped(s + errors, cap) - _capped(s, cap)
    down = _capped(s, cap) - _capped(s - errors, cap)
    return torch.maximum(up, down).where(~s.isinf(), 0)


def _sink_column(s: torch.Tensor, semantics: Semantics) -> list[torch.Tensor]:
    """Returns the sinks as scores of an additional key; an empty list if there are none."""
    if semantics.sinks is None:
        return []
    return [semantics.sinks.to(s.dtype)[None, :, None, None].expand(*s.shape[:-1], 1)]
