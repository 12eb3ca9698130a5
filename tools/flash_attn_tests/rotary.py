"""Rotary position embedding in plain torch: what tests of a cache compare with."""

from __future__ import annotations

import torch


def apply_rotary_emb(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
) -> torch.Tensor:
    """x (batch, seq_len, heads, d_head) with the first 2 * cos.shape[1] elements of each row turned
    in float32 by the angles of its position: row i of request b is at seqlen_offsets[b] + i.

    Args:
        cos, sin: (positions, elements / 2).
        interleaved: Elements 2 i and 2 i + 1 are a pair; else i and i + elements / 2.
    """
    n = cos.shape[1]
    offsets = torch.as_tensor(seqlen_offsets, device=x.device).expand(len(x))
    positions = offsets[:, None] + torch.arange(x.shape[1], device=x.device)
    c, s = (t[positions.long()][:, :, None].float() for t in (cos, sin))
    turned, rest = x[..., : 2 * n].float(), x[..., 2 * n :]
    if interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
        pairs = torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        pairs = torch.cat((a * c - b * s, a * s + b * c), -1)
    return torch.cat((pairs.to(x.dtype), rest), -1)
