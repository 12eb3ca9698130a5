"""FlashAttention's rotary position embedding, differentiable, in plain torch."""

from __future__ import annotations

import torch

from flashsmith.flash_attn.ops.triton.rotary import apply_rotary

__all__ = ["apply_rotary", "apply_rotary_emb"]


def apply_rotary_emb(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
    cu_seqlens: torch.Tensor | None = None,
    max_seqlen: int | None = None,
) -> torch.Tensor:
    """Applies the rotary angles of its position to the first rotary_dim elements of each row.

    The result is differentiable by x; cos and sin are constants.

    Args:
        x: (batch, seqlen, nheads, headdim), or with ``cu_seqlens`` (total, nheads, headdim).
        cos, sin: (seqlen_ro, rotary_dim / 2), rotary_dim up to headdim.
        interleaved: Whether elements 2 i and 2 i + 1 form a pair; else i and i + rotary_dim / 2 do.
        inplace: Whether x is overwritten, and returned.
        seqlen_offsets: The position of the first row, or one for each sequence, int32 or int64
            (batch,).
        cu_seqlens: int32 (batch + 1,): the offsets of packed sequences.
        max_seqlen: An upper bound of the packed lengths; required with ``cu_seqlens``.

    Returns:
        The rotated x, with x's shape and dtype. Rows beyond seqlen_ro, and rows outside all
        sequences, are unchanged.

    Raises:
        TypeError, ValueError: An argument is not supported; the message names it.
    """
    return apply_rotary(
        x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved=interleaved,
        inplace=inplace,
    )  # fmt: skip
