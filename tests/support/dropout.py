"""Calls that show which weights a kernel drops: all weights of a query are alike, and each of the
columns of what comes out is one weight's."""

from __future__ import annotations

import torch

from flashsmith.reference import dropout_scale

STATE = torch.tensor([2**40 + 17, -3])
P = 0.3


def columns_of(rows: int, d: int, first: int, dtype: torch.dtype) -> torch.Tensor:
    """(rows, d): row first + j has a one in column j alone."""
    return torch.eye(rows, dtype=dtype)[:, first : first + d].contiguous()


def counted(t: torch.Tensor, n_keys: int) -> torch.Tensor:
    """How many weights of 1 / n_keys, times what makes up for those that are dropped, elements
    are sums of."""
    return (t.double() * n_keys / dropout_scale(P)).round().int()
