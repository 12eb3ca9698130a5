"""Comparison of a result with the reference, and the tolerance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Comparison:
    """A result compared with the reference."""

    error: float  # at the element with the largest ratio of error to tolerance
    tolerance: float
    worst: str  # its index, and both values

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance

    @property
    def ratio(self) -> float:
        """The error as a share of the tolerance."""
        if self.error == 0:
            return 0.0
        return self.error / self.tolerance if self.tolerance else math.inf


def compare(
    o: torch.Tensor,
    exact: torch.Tensor,
    low_precision: torch.Tensor,
    allowance: torch.Tensor | float = 0.0,
) -> Comparison:
    """Compares o with the reference, as the FlashAttention test suites do.

    The largest error may be twice the error of the same computation in low-precision torch, plus
    twice the error of rounding the exact result to o's dtype; both are taken over the elements that
    are finite in o's dtype.

    o must be NaN exactly where the exact result is NaN, and infinite, with the right sign, where
    the exact result is infinite or overflows o's dtype. Where the tolerance reaches beyond the
    dtype's largest number, o may be finite or infinite.

    Args:
        o: The kernel's result, float16 or bfloat16.
        exact: ``reference_attention`` in float64 or float32.
        low_precision: ``reference_attention`` in o's dtype.
        allowance: An additional tolerance for each element, of a shape that broadcasts to o's.
    """
    rounded = exact.to(o.dtype).to(exact.dtype)
    low = low_precision.to(exact.dtype)
    rounding = _largest((rounded - exact).abs(), rounded.isfinite())
    allowed = _largest((low - exact).abs(), rounded.isfinite() & low.isfinite())
    return _worst(o, exact, _differences(o, exact), 2 * allowed + 2 * rounding + allowance)


def compare_lse(lse: torch.Tensor, exact: torch.Tensor, tolerance: torch.Tensor) -> Comparison:
    """Compares a log-sum-exp with the reference; NaN and infinities count as in ``compare``.

    Args:
        lse: The kernel's log-sum-exp, (batch, n_heads, seq_len_q), float32.
        exact: ``reference_lse`` in float64.
        tolerance: ``lse_tolerance``.
    """
    return _worst(lse, exact, _differences(lse, exact), tolerance)


def _largest(values: torch.Tensor, counted: torch.Tensor) -> float:
    """Returns the largest of the values that count; 0 if none does."""
    return values.where(counted, 0).max().item() if values.numel() else 0.0


def _differences(result: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Returns each element's distance from the nearest exact value that rounds to it.

    Infinity is right for any exact value at or beyond the first one that rounds to it.
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
    # An element with error 0 and tolerance 0 is right, so the divisor must not be 0; infinity /
    # infinity is NaN, and counts as the worst.
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
