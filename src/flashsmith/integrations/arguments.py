"""What the functions of other libraries have in common in their arguments."""

from __future__ import annotations

import numbers
from collections.abc import Sequence

import torch

from flashsmith.ops.checks import LARGEST, SMALLEST
from flashsmith.ops.gate import explain


def check_types(**tensors: torch.Tensor) -> None:
    """Raises unless each is a tensor."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; expected a torch.Tensor")


def check_dimensions(sizes: Sequence[str], **tensors: torch.Tensor) -> None:
    """Raises unless each is a tensor with so many dimensions."""
    check_types(**tensors)
    for name, tensor in tensors.items():
        if tensor.ndim != len(sizes):
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; expected {len(sizes)} dimensions: "
                f"({', '.join(sizes)})"
            )


def check_heads(enable_gqa: bool, query: torch.Tensor, key: torch.Tensor) -> None:
    """Raises if heads of (batch, heads, seq_len, d_head) are shared, and ``enable_gqa`` is off."""
    if type(enable_gqa) is not bool:
        raise TypeError(f"enable_gqa is {enable_gqa!r}; expected True or False")
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError(
            f"query has {query.shape[1]} heads and key has {key.shape[1]}; pass enable_gqa=True to "
            "have neighbouring heads of query share one of key and value"
        )


def cast_by_autocast(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
    """As torch casts the arguments of its own attention: where autocast is on for the device of the
    first, all of floating point but float64 become of autocast's dtype."""
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
    """Returns what gives the same scores with a scale that kernels take: they take positive ones.

    Raises:
        TypeError, ValueError: scale is no number that float32 arithmetic can work with.
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
    """Returns a parameter of a model, which has the model's dtype."""
    if t is None:
        return None
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"{name} is a {type(t).__name__}; expected a torch.Tensor, or None")
    try:
        return t.float()
    except Exception:
        explain(**{name: t})
        raise
