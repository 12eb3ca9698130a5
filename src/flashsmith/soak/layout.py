"""How q, k, v and o lie in memory, and what around o must stay as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

LAYOUTS = ("contiguous", "padded", "heads_first", "packed")

_GUARD = 7.0  # stands around o; no kernel writes it there again
_PADDING = 8  # elements: 16 bytes, to which rows have to be aligned
_DENSE = 4  # dimensions


@dataclass(frozen=True)
class Placed:
    """The tensors of a call, and the memory that its outputs are part of."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    lse: torch.Tensor
    around: tuple[torch.Tensor, ...]  # with o and lse inside

    def poison(self, value: float) -> None:
        """Fills what the kernel is to write; all around it is a guard."""
        for whole in self.around:
            whole.fill_(_GUARD)
        self.o.fill_(value)
        self.lse.fill_(value)

    def n_overwritten(self) -> torch.Tensor:
        """How many elements around the outputs are not as they were; scalar, on the device."""
        o, lse = self.o.clone(), self.lse.clone()
        self.o.fill_(_GUARD)
        self.lse.fill_(_GUARD)
        counts = [(whole != _GUARD).sum() for whole in self.around]
        self.o.copy_(o)
        self.lse.copy_(lse)
        return torch.stack(counts).sum()


def place(layout: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Placed:
    """q, k and v, contiguous so far, as ``layout`` has them, with o and lse likewise.

    contiguous; padded: rows with a gap between them; heads_first: (batch, heads, seq_len, d_head)
    seen as (batch, seq_len, heads, d_head); packed: slices of one tensor along its heads, as far as
    sizes agree. o is inside a larger tensor under all of them.

    Tensors without a batch, (total, heads, d_head), are laid out as those of a batch of 1.
    """
    arrange, room_for_o = _ARRANGEMENTS[layout]
    batched = [t if t.ndim == _DENSE else t.unsqueeze(0) for t in (q, k, v)]
    batch, seq_len, heads, _ = batched[0].shape
    o, around_o = room_for_o(q, (batch, seq_len, heads, v.shape[-1]))
    flat = q.new_empty(batch * heads * seq_len + 2 * _PADDING, dtype=torch.float32)
    lse = flat[_PADDING:-_PADDING].view(batch, heads, seq_len)
    q_, k_, v_, o, lse = (
        t.squeeze(0) if like.ndim < _DENSE else t
        for t, like in zip((*arrange(*batched), o, lse), (q, k, v, q, q), strict=True)
    )
    return Placed(q_, k_, v_, o, lse, (around_o, flat))


_Shape = tuple[int, int, int, int]
_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_Room = tuple[torch.Tensor, torch.Tensor]  # o, and what it is inside


def _as_they_are(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> _Three:
    return q, k, v


def _padded(*qkv: torch.Tensor) -> _Three:
    q, k, v = (_into(t, t.new_zeros(*t.shape[:3], t.shape[3] + 2 * _PADDING)) for t in qkv)
    return q, k, v


def _into(t: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    view = wide[..., _PADDING:-_PADDING]
    return view.copy_(t)


def _heads_first(*qkv: torch.Tensor) -> _Three:
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in qkv)
    return q, k, v


def _packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> _Three:
    if k.shape[3] != v.shape[3]:
        return _padded(q, k, v)
    if q.shape[:2] == k.shape[:2]:
        q, k, v = _side_by_side(q, k, v)
    else:
        k, v = _side_by_side(k, v)
    return q, k, v


def _side_by_side(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.split(torch.cat(tensors, 2), [t.shape[2] for t in tensors], 2)


def _room_in_a_row(q: torch.Tensor, shape: _Shape) -> _Room:
    flat = q.new_empty(math.prod(shape) + 2 * _PADDING)
    return flat[_PADDING:-_PADDING].view(shape), flat


def _room_between(q: torch.Tensor, shape: _Shape) -> _Room:
    batch, seq_len, heads, d_v = shape
    whole = q.new_empty(batch, seq_len + 2, heads + 1, d_v + 2 * _PADDING)
    return whole[:, 1:-1, :-1, _PADDING:-_PADDING], whole


def _room_between_heads_first(q: torch.Tensor, shape: _Shape) -> _Room:
    batch, seq_len, heads, d_v = shape
    whole = q.new_empty(batch, heads, seq_len + 2, d_v + 2 * _PADDING)
    return whole[:, :, 1:-1, _PADDING:-_PADDING].transpose(1, 2), whole


_ARRANGEMENTS: dict[str, tuple[Callable[..., _Three], Callable[[torch.Tensor, _Shape], _Room]]] = {
    "contiguous": (_as_they_are, _room_in_a_row),
    "padded": (_padded, _room_between),
    "heads_first": (_heads_first, _room_between_heads_first),
    "packed": (_packed, _room_between),
}
