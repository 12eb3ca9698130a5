"""Between tensors with padding and sequences that lie one behind the other."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F


class Packing(NamedTuple):
    """Where the tokens of a mask (batch, seq_len) lie.

    Attributes:
        indices: (total,): of the tokens, in (batch * seq_len).
        cu_seqlens: int32 (batch + 1,): where each sequence begins among them, and their number.
        max_seqlen: The length of the longest.
    """

    indices: torch.Tensor
    cu_seqlens: torch.Tensor
    max_seqlen: int

    @classmethod
    def of(cls, mask: torch.Tensor) -> Packing:
        """mask: (batch, seq_len); not zero where there is a token. Waits for the device."""
        lengths = (mask != 0).sum(-1, dtype=torch.int32)
        return cls(
            mask.flatten().nonzero().flatten(),
            F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)),
            int(lengths.max()) if lengths.numel() else 0,
        )

    def pack(self, t: torch.Tensor) -> torch.Tensor:
        """(batch, seq_len, ...) -> (total, ...)."""
        return t.flatten(0, 1)[self.indices]


def unpack(t: torch.Tensor, indices: torch.Tensor, batch: int, seq_len: int) -> torch.Tensor:
    """(total, ...) -> (batch, seq_len, ...), with 0 where no index points."""
    padded = t.new_zeros((batch * seq_len, *t.shape[1:]))
    padded[indices] = t
    return padded.view(batch, seq_len, *t.shape[1:])
