"""Makes tensors of the same numbers in other memory layouts."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F


def with_gaps(t: torch.Tensor) -> torch.Tensor:
    """Returns the numbers as every second element of a larger tensor."""
    return torch.stack([t, torch.ones_like(t)], -1).flatten(-2)[..., ::2]


def of_wider_rows(t: torch.Tensor, before: int = 0, behind: int = 4) -> torch.Tensor:
    """Returns the numbers in longer rows, between other elements."""
    return F.pad(t, (before, behind), value=1)[..., before : -behind or None]


def innermost(t: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns the numbers with another dimension than the last contiguous."""
    return t.transpose(dim, -1).contiguous().transpose(dim, -1)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gaps between elements": with_gaps,
    "rows that do not begin at multiples of 8": of_wider_rows,
    "a first element that does not": lambda t: of_wider_rows(t, 3, 5),
    "the last dimension outermost": lambda t: innermost(t, 0),
    "the dimension before the last innermost": lambda t: innermost(t, -2),
    "the second dimension innermost": lambda t: innermost(t, 1),
}
