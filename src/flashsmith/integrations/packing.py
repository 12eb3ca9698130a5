"""Conversion between padded tensors and packed sequences."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F


class Packing(NamedTuple):
    """The positions of the tokens of a mask (batch, seq_len).

    Attributes:
        indices: (total,): the tokens' indices in (batch * seq_len).
        cu_seqlens: int32 (batch + 1,): the offset of each sequence, and the number of tokens.
        max_seqlen: The max length of a sequence.
    """

    indices: torch.Tensor
    cu_seqlens: torch.Tensor
    max_seqlen: int

    @classmethod
    def of(cls, mask: torch.Tensor) -> Packing:
        """Returns the packing of a mask (batch, seq_len) that is not zero for a token. Waits for
        the device."""
        lengths = (mask != 0).sum(-1, dtype=torch.int32)
        return cls(
            mask.flatten().nonzero().flatten(),
            F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)),
            int(lengths.max()) if lengths.numel() else 0,
        )

    def pack(self, t: torch.Tensor) -> torch.Tensor:
        """Returns the tokens (total, ...) of (batch, seq_len, ...)."""
        return t.flatten(0, 1)[self.indices]


def unpack(t: torch.Tensor, indices: torch.Tensor, batch: int, seq_len: int) -> torch.Tensor:
    """Returns (batch, seq_len, ...) from tokens (total, ...), with 0 at all other positions."""
    padded = t.new_zeros((batch * seq_len, *t.shape[1:]))
    padded[indices] = t
    return padded.view(batch, seq_len, *t.shape[1:])
