"""How a result is compared with the reference, and how much it may differ."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Comparison:
    """A result against the reference."""

    error: float  # at the element that is worst beside what it may differ by
    tolerance: float
    worst: str  # where, and both values

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance

    @property
    def ratio(self) -> float:
        """Of the error and what is allowed."""
        if self.error == 0:
            return 0.0
        return self.error / self.tolerance if self.tolerance else math.inf


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
    """Returns how far each element of the result is from an exact one that it would be right for.

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
