"""Checks and conversions of arguments that functions of several libraries share."""

from __future__ import annotations

import numbers
from collections.abc import Sequence

import torch

from flashsmith.ops.checks import LARGEST, SMALLEST
from flashsmith.ops.gate import explain


def check_types(**tensors: torch.Tensor) -> None:
    """Raises TypeError unless each argument is a tensor."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; expected a torch.Tensor")


def check_dimensions(sizes: Sequence[str], **tensors: torch.Tensor) -> None:
    """Raises unless each argument is a tensor with this number of dimensions."""
    check_types(**tensors)
    for name, tensor in tensors.items():
        if tensor.ndim != len(sizes):
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; expected {len(sizes)} dimensions: "
                f"({', '.join(sizes)})"
            )


def check_heads(enable_gqa: bool, query: torch.Tensor, key: torch.Tensor) -> None:
    """Raises if heads of (batch, heads, seq_len, d_head) are shared but ``enable_gqa`` is off."""
    if type(enable_gqa) is not bool:
        raise TypeError(f"enable_gqa is {enable_gqa!r}; expected True or False")
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError(
            f"query has {query.shape[1]} heads and key has {key.shape[1]}; pass enable_gqa=True to "
            "have neighbouring heads of query share one of key and value"
        )


def cast_by_autocast(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
    """Casts tensors as torch's own attention does: if autocast is on for the first tensor's device,
    all floating-point tensors but float64 get autocast's dtype."""
    kind = tensors[0].device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(
        t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors
    )


def with_positive_scale(
    query: torch.Tensor, scale: float | None
) -> tuple[torch.Tensor, float | None]:
    """Returns query and scale with equal scores and a positive scale, as kernels require.

    Raises:
        TypeError, ValueError: scale is not a number that float32 arithmetic supports.
    """
    if scale is None:
        return query, None
    if isinstance(scale, bool) or not isinstance(scale, numbers.Real):
        raise TypeError(
            f"scale is a {type(scale).__name__}; expected a float, or None for 1 / sqrt(d_head)"
        )
    if scale == 0:
        return query * 0, 1.0
    if not SMALLEST <= abs(scale) <= LARGEST:  # False for NaN
        raise ValueError(
            f"scale is {scale}; expected 0, or a number from {SMALLEST} to {LARGEST} of either sign"
        )
    return (query, float(scale)) if scale > 0 else (-query, -float(scale))


def float32(name: str, t: torch.Tensor | None) -> torch.Tensor | None:
    """Returns a model's parameter, which has the model's dtype, in float32; None for None."""
    if t is None:
        return None
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"{name} is a {type(t).__name__}; expected a torch.Tensor, or None")
    try:
        return t.float()
    except Exception:
        explain(**{name: t})
        raise
