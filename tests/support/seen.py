"""Finds the keys that each query sees from the result of a kernel."""

from __future__ import annotations

import math

import torch

from flashsmith.configs import ForwardKernelConfig
from support.problems import Tensors

_BASE, _DIGITS = 16, 3  # of a key's number; v has a one at each digit
_COLUMNS = _BASE * _DIGITS


def telling(
    cfg: ForwardKernelConfig, shape_q: tuple[int, ...], shape_k: tuple[int, ...]
) -> Tensors:
    """Returns q, k and v of (..., rows, heads): all keys weigh the same, and v encodes the row."""
    dtype = cfg.dtype.to_torch_dtype()
    q, k = (torch.zeros(*shape, cfg.d_head, dtype=dtype) for shape in (shape_q, shape_k))
    v = torch.zeros_like(k)
    v[..., :_COLUMNS] = _digits(shape_k[-2])[:, None]
    return q, k, v


def band(n_q: int, n_k: int, left: int, right: int, top_left: bool = False) -> torch.Tensor:
    """Returns whether a key lies within a window, (n_q, n_k); a side of -1 has no bound."""
    diagonal = torch.arange(n_q)[:, None] + (0 if top_left else n_k - n_q)
    ahead = torch.arange(n_k) - diagonal
    return ((ahead >= -left) | (left < 0)) & ((ahead <= right) | (right < 0))


def wrong_rows(
    o: torch.Tensor, lse: torch.Tensor, visible: torch.Tensor, first: int = 0
) -> list[int]:
    """Returns the rows of a result that see other keys than they should.

    o, lse: (n_q, d_head) and (n_q,), from ``telling`` tensors.
    visible: (n_q, n_k), for the keys from number ``first`` on.
    """
    count = visible.sum(-1)
    share = visible.double() @ _digits(first + visible.shape[1])[first:]
    share /= count[:, None].clamp(min=1)
    # The LSE tells the number of keys, and o the share of each digit, up to rounding.
    right = ((o[:, :_COLUMNS] - share).abs() <= share * 2**-7).all(-1)
    near = 0.25 / count.clamp(min=1)
    right &= torch.where(count > 0, (lse - count.log()).abs() < near, lse == -math.inf)
    return (~right).nonzero().flatten().tolist()


def _digits(n_k: int) -> torch.Tensor:
    """Returns (n_k, _COLUMNS): ones at the digits of each key's number."""
    assert n_k <= _BASE**_DIGITS
    keys, values = torch.arange(n_k)[:, None], torch.arange(_BASE)
    return torch.cat([keys // _BASE**i % _BASE == values for i in range(_DIGITS)], 1).double()
