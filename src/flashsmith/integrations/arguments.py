"""What the functions of other libraries have in common in their arguments."""

from __future__ import annotations

from collections.abc import Sequence

import torch


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


def with_dense_rows(t: torch.Tensor) -> torch.Tensor:
    """Copied, if its last dimension has gaps, which kernels do not take."""
    return t if t.stride(-1) == 1 else t.contiguous()


def float32(name: str, t: torch.Tensor | None) -> torch.Tensor | None:
    """A parameter of a model, which has the model's dtype."""
    if t is None:
        return None
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"{name} is a {type(t).__name__}; expected a torch.Tensor, or None")
    return t.float()
