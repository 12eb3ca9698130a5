"""Attention of varlen batches, each sequence by the dense reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flashsmith.reference.attention import reference_attention, reference_lse
from flashsmith.reference.semantics import Semantics

# The index of a sequence's used rows, in a tensor that is packed or not.
_Place = tuple[slice] | tuple[int, slice]


@dataclass(frozen=True, eq=False)
class Packing:
    """The positions of sequences in q and in k and v, in the keywords of ``flashsmith.attention``.

    Attributes:
        cu_seqlens_q, cu_seqlens_k: int32 (batch + 1,): the offsets of sequences in a tensor
            (total, heads, d_head). None: the tensor is (batch, seq_len, heads, d_head).
        seqused_q, seqused_k: int32 (batch,): the number of rows in use of each sequence, from its
            first. None: all.
    """

    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None
    seqused_q: torch.Tensor | None = None
    seqused_k: torch.Tensor | None = None

    def sequences(
        self, q: torch.Tensor, k: torch.Tensor, semantics: Semantics
    ) -> Iterator[PackedSequence]:
        """Yields the sequences of q and k in their order."""
        places_q = _places(q, self.cu_seqlens_q, self.seqused_q)
        places_k = _places(k, self.cu_seqlens_k, self.seqused_k)
        for index, (of_q, of_k) in enumerate(zip(places_q, places_k, strict=True)):
            lengths = (place[-1].stop - place[-1].start for place in (of_q, of_k))
            yield PackedSequence(of_q, of_k, semantics.sequence(index, *lengths))


@dataclass(frozen=True, eq=False)
class PackedSequence:
    """The used rows of one sequence in q and in k, and its semantics."""

    place_q: _Place
    place_k: _Place
    semantics: Semantics

    def of_q(self, t: torch.Tensor) -> torch.Tensor:
        """Returns a view (1, length, heads, ...) of the sequence in a tensor with q's layout."""
        return t[self.place_q].unsqueeze(0)

    def of_k(self, t: torch.Tensor) -> torch.Tensor:
        return t[self.place_k].unsqueeze(0)

    def of_lse(self, lse: torch.Tensor) -> torch.Tensor:
        """Returns a view (1, heads, length) of the sequence in (batch, heads, seq_len_q) or (heads,
        total_q)."""
        sequence = lse[self.place_q[0]] if len(self.place_q) == 2 else lse
        return sequence[:, self.place_q[-1]].unsqueeze(0)


def reference_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    compute: torch.dtype = torch.float64,
    **semantics: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes ``reference_attention`` and ``reference_lse`` of each sequence.

    Args:
        q: (total_q, heads, d_head) with ``cu_seqlens_q``, else (batch, seq_len_q, heads, d_head).
        k, v: As q, with ``cu_seqlens_k`` and heads_kv heads.
        cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k: See ``Packing``.
        semantics: The fields of ``Semantics``.

    Returns:
        o, laid out as q, and the log-sum-exp, (heads, total_q) or (batch, heads, seq_len_q). Rows
        outside the used queries have 0 and -inf.
    """
    packing = Packing(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k)
    o = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=compute, device=q.device)
    lse = o.new_full(lse_shape(q), -torch.inf)
    for sequence in packing.sequences(q, k, Semantics(**semantics)):
        own_q, own_k, own_v = sequence.of_q(q), sequence.of_k(k), sequence.of_k(v)
        keywords = sequence.semantics.keywords
        sequence.of_q(o)[:] = reference_attention(own_q, own_k, own_v, compute=compute, **keywords)
        sequence.of_lse(lse)[:] = reference_lse(own_q, own_k, compute=compute, **keywords)
    return o, lse


def lse_shape(q: torch.Tensor) -> tuple[int, ...]:
    """Returns the shape of the log-sum-exp for a q that is packed or not."""
    *batch, seq_len, heads, _ = q.shape
    return *batch, heads, seq_len


def _places(
    t: torch.Tensor, cu_seqlens: torch.Tensor | None, seqused: torch.Tensor | None
) -> Sequence[_Place]:
    if cu_seqlens is None:
        lengths = [t.shape[1]] * len(t) if seqused is None else seqused.tolist()
        return [(sample, slice(0, length)) for sample, length in enumerate(lengths)]
    lengths = (cu_seqlens.diff() if seqused is None else seqused).tolist()
    starts = cu_seqlens[:-1].tolist()
    return [(slice(start, start + length),) for start, length in zip(starts, lengths, strict=True)]
