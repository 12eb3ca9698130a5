"""Splits off new keys, which a call appends to a KV cache, and computes the rotary embedding."""

from __future__ import annotations

import torch

from support.decoding import Requests

NEW = 3


def turned(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, pairs: bool
) -> torch.Tensor:
    """Returns the rotary embedding of x, (batch, n, heads, d), at positions (batch, n)."""
    half = cos.shape[1]
    rotary = x[..., : 2 * half].double()
    low, high = (
        (rotary[..., ::2], rotary[..., 1::2]) if pairs else (rotary[..., :half], rotary[..., half:])
    )
    c, s = cos.double()[positions][:, :, None], sin.double()[positions][:, :, None]
    both = low * c - high * s, low * s + high * c
    joined = torch.stack(both, -1).flatten(-2) if pairs else torch.cat(both, -1)
    return torch.cat([joined.to(x.dtype), x[..., 2 * half :]], -1)


def angles(rows: int, half: int) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.arange(rows)[:, None] * torch.rand(half)
    return angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)


def before(asked: Requests, n_new: int = NEW) -> tuple[Requests, torch.Tensor, torch.Tensor]:
    """Returns requests without their last keys, and these as the new ones."""
    lengths = tuple(n - n_new for n in asked.lengths)
    places = torch.tensor(lengths)[:, None] + torch.arange(n_new)
    rows = torch.arange(len(lengths))[:, None]
    k_new, v_new = asked.k[rows, places], asked.v[rows, places]
    k, v = asked.k.clone(), asked.v.clone()
    k[rows, places] = v[rows, places] = torch.nan
    return Requests(asked.q, k, v, lengths), k_new, v_new
