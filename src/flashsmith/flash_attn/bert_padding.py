"""The functions of FlashAttention's module of this name that remove padding and restore it."""

from __future__ import annotations

import torch

from flashsmith.integrations.arguments import check_dimensions, check_types
from flashsmith.integrations.packing import Packing, unpack


def unpad_input(
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor,
    unused_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Removes the padding: keeps the tokens that a mask selects.

    Args:
        hidden_states: (batch, seqlen, ...).
        attention_mask: (batch, seqlen), bool or int: 1 for a token.
        unused_mask: (batch, seqlen): 1 for an unused token, which is kept too.

    Returns:
        The tokens (total, ...), their indices in the padded batch (total,), cu_seqlens int32 (batch
        + 1,), the length of the longest sequence, and the number of used tokens of each, int32
        (batch,).
    """
    check_types(hidden_states=hidden_states)
    check_dimensions(("batch", "seqlen"), attention_mask=attention_mask)
    if hidden_states.shape[:2] != attention_mask.shape:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; expected "
            f"{tuple(hidden_states.shape[:2])}, the first two dimensions of hidden_states"
        )
    present = attention_mask if unused_mask is None else attention_mask + unused_mask
    packing = Packing.of(present)
    seqused = attention_mask.sum(dim=-1, dtype=torch.int32)
    return (
        packing.pack(hidden_states),
        packing.indices,
        packing.cu_seqlens,
        packing.max_seqlen,
        seqused,
    )


def pad_input(
    hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int
) -> torch.Tensor:
    """Puts tokens back where ``unpad_input`` took them from, and 0 elsewhere.

    Args:
        hidden_states: (total, ...).
        indices: (total,), from ``unpad_input``.

    Returns:
        (batch, seqlen, ...).
    """
    check_types(hidden_states=hidden_states, indices=indices)
    return unpack(hidden_states, indices, batch, seqlen)


def index_first_axis(hidden_states: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Returns the tokens (total, ...) at ``indices`` of (tokens, ...)."""
    return hidden_states[indices]
