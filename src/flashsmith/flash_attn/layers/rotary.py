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
    """Turns the first rotary_dim elements of each row by the angles of its position.

    Differentiable by x; cos and sin are constants.

    Args:
        x: (batch, seqlen, nheads, headdim), or with ``cu_seqlens`` (total, nheads, headdim).
        cos, sin: (seqlen_ro, rotary_dim / 2), rotary_dim up to headdim.
        interleaved: Elements 2 i and 2 i + 1 are turned together; else i and i + rotary_dim / 2.
        inplace: x is overwritten, and returned.
        seqlen_offsets: The position of the first row; int32 or int64 (batch,): of each sequence.
        cu_seqlens: int32 (batch + 1,): where packed sequences begin and end.
        max_seqlen: No packed sequence is longer; it goes with ``cu_seqlens``.

    Returns:
        Of x's shape and dtype. Rows beyond seqlen_ro, and those of no sequence, stay.

    Raises:
        TypeError, ValueError: An argument that is not taken; names it.
    """
    return apply_rotary(
        x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved=interleaved,
        inplace=inplace,
    )  # fmt: skip
