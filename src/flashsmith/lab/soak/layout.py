"""Lays tensors out in memory, and guards the memory around results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

LAYOUTS = ("contiguous", "padded", "heads_first", "packed")

_GUARD = 7.0  # fills the memory around results; no kernel happens to write it
_PADDING = 8  # elements: 16 bytes, the alignment of rows
_DENSE = 4  # dimensions

Room = tuple[torch.Tensor, torch.Tensor]  # a tensor, and the larger one that contains it


@dataclass(frozen=True)
class Results:
    """A kernel's results by name, and the larger tensors that contain them.

    Attributes:
        begin_at_zero: Names of results that have to be zero before a launch.
    """

    tensors: dict[str, torch.Tensor]
    around: tuple[torch.Tensor, ...]
    begin_at_zero: frozenset[str] = frozenset()

    def poison(self, value: float) -> None:
        """Fills the results with ``value``, and the memory around them with the guard."""
        for whole in self.around:
            whole.fill_(_GUARD)
        self.fill(value)

    def fill(self, value: float) -> None:
        for name, t in self.tensors.items():
            t.fill_(0.0 if name in self.begin_at_zero else value)

    def are_nan(self) -> bool:
        """Returns whether no result was written that is NaN before a launch."""
        written = (t for name, t in self.tensors.items() if name not in self.begin_at_zero)
        return all(bool(t.isnan().all()) for t in written)

    def n_overwritten(self) -> torch.Tensor:
        """Returns the number of changed elements around the results, as a scalar on the device."""
        kept = [t.clone() for t in self.tensors.values()]
        for t in self.tensors.values():
            t.fill_(_GUARD)
        counts = [(whole != _GUARD).sum() for whole in self.around]
        for t, own in zip(self.tensors.values(), kept, strict=True):
            t.copy_(own)
        return torch.stack(counts).sum()


@dataclass(frozen=True)
class Placed:
    """The tensors of a forward call."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    results: Results  # o and lse

    @property
    def o(self) -> torch.Tensor:
        return self.results.tensors["o"]

    @property
    def lse(self) -> torch.Tensor:
        return self.results.tensors["lse"]


def place(layout: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Placed:
    """Returns q, k and v, contiguous before, in a layout, with o and lse.

    contiguous: rows without gaps. padded: rows with gaps between them. heads_first: (batch, heads,
    seq_len, d_head) seen as (batch, seq_len, heads, d_head). packed: slices of one tensor along its
    heads, as far as sizes agree. o is inside a larger tensor in all of them.

    Tensors without a batch, (total, heads, d_head), are laid out like a batch of 1.
    """
    arrange, _ = _ARRANGEMENTS[layout]
    arranged = arrange(*map(_batched, (q, k, v)))
    q_, k_, v_ = (_laid_out_as(like, t) for t, like in zip(arranged, (q, k, v), strict=True))
    o, around_o = make_room(layout, q, v.shape[-1])
    *batch, seq_len, heads, _ = q.shape
    lse, around_lse = make_flat_room(q, (*batch, heads, seq_len))
    return Placed(q_, k_, v_, Results({"o": o, "lse": lse}, (around_o, around_lse)))


def make_room(layout: str, like: torch.Tensor, d: int) -> Room:
    """Returns room for a tensor with the rows of ``like``, each of d elements, in a layout."""
    _, room = _ARRANGEMENTS[layout]
    batch, seq_len, heads, _ = _batched(like).shape
    inside, around = room(like, (batch, seq_len, heads, d))
    return _laid_out_as(like, inside), around


def make_flat_room(like: torch.Tensor, shape: tuple[int, ...]) -> Room:
    """Returns room for a contiguous float32 tensor."""
    flat = like.new_empty(math.prod(shape) + 2 * _PADDING, dtype=torch.float32)
    return flat[_PADDING:-_PADDING].view(shape), flat


def _batched(t: torch.Tensor) -> torch.Tensor:
    return t if t.ndim == _DENSE else t.unsqueeze(0)


def _laid_out_as(like: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return t.squeeze(0) if like.ndim < _DENSE else t


_Shape = tuple[int, int, int, int]
_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


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


def _room_in_a_row(q: torch.Tensor, shape: _Shape) -> Room:
    flat = q.new_empty(math.prod(shape) + 2 * _PADDING)
    return flat[_PADDING:-_PADDING].view(shape), flat


def _room_between(q: torch.Tensor, shape: _Shape) -> Room:
    batch, seq_len, heads, d_v = shape
    whole = q.new_empty(batch, seq_len + 2, heads + 1, d_v + 2 * _PADDING)
    return whole[:, 1:-1, :-1, _PADDING:-_PADDING], whole


def _room_between_heads_first(q: torch.Tensor, shape: _Shape) -> Room:
    batch, seq_len, heads, d_v = shape
    whole = q.new_empty(batch, heads, seq_len + 2, d_v + 2 * _PADDING)
    return whole[:, :, 1:-1, _PADDING:-_PADDING].transpose(1, 2), whole


_ARRANGEMENTS: dict[str, tuple[Callable[..., _Three], Callable[[torch.Tensor, _Shape], Room]]] = {
    "contiguous": (_as_they_are, _room_in_a_row),
    "padded": (_padded, _room_between),
    "heads_first": (_heads_first, _room_between_heads_first),
    "packed": (_packed, _room_between),
}
