"""What a call computes beside softmax(q k^T) v, from the keywords of ``attention``."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling

from flashsmith import settings
from flashsmith.configs import Variant
from flashsmith.ops.checks import (
    LARGEST,
    SMALLEST,
    check_flags,
    check_tensors,
)
from flashsmith.ops.functions import FUNCTIONS, Functions, with_traced_functions
from flashsmith.ops.gate import CAPTURED
from flashsmith.reference.dropout import check_dropout
from flashsmith.runtime.extras import CAUSAL_EXTRAS, FULL_EXTRAS, NO_SCALES, Extras, Scales

_ALL = -1  # of a window's sides: every key


class Spec(NamedTuple):
    """What one call computes.

    key: Tells calls of other kernels and plans apart.
    told_again: What a call has to be told that is made again: nothing where the key says it all.
    is_cache: Whether decode counts keys and diagonals as the call does: these from the ends, and of
        lengths there are those of keys alone; of 16 bits.
    """

    key: Hashable
    extras: Extras
    told_again: tuple[Any, ...] = ()
    batch: int | None = None  # sequences, if they have lengths of their own
    max_seqlen_k: int | None = None
    is_cache: bool = True
    scales: Scales = NO_SCALES
    block_table: torch.Tensor | None = None

    @property
    def variant(self) -> Variant:
        """What computes it, for rows that are not padded."""
        variant = self.extras.variant
        return variant if self.block_table is None else replace(variant, paged=True)


FULL_SPEC, CAUSAL_SPEC = Spec(False, FULL_EXTRAS), Spec(True, CAUSAL_EXTRAS)


@dataclass(frozen=True)
class Semantics:
    """What one call computes, by value: its functions are traced already, and nothing in it can
    be changed by the caller but what tensors hold.

    Fields are keywords of ``attention``, or what ``traced_functions`` gives in place of them.
    block_table, (sequences, pages), says that k and v are pages of a KV cache.
    """

    causal: bool = False
    window_size: tuple[int, int] = (_ALL, _ALL)
    softcap: float = 0.0
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    top_left: bool = False
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None
    seqused_q: torch.Tensor | None = None
    seqused_k: torch.Tensor | None = None
    block_table: torch.Tensor | None = None
    score: int = 0
    mod_tensors: Sequence[torch.Tensor] | None = None
    key_ranges: torch.Tensor | None = None
    rows_per_range: int = 1
    dropout_p: float = 0.0
    rng_state: torch.Tensor | None = None
    q_scale: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None

    @classmethod
    def of(
        cls, q: torch.Tensor, k: torch.Tensor, causal: bool, keywords: Mapping[str, Any]
    ) -> Semantics:
        """The record of a call on q and k from ``attention``'s keywords.

        Raises:
            TypeError: ``attention`` has no such keyword; names it.
            TracingError, TypeError, ValueError: As ``traced_functions``.
        """
        if not keywords.keys().isdisjoint(FUNCTIONS):
            keywords = with_traced_functions(q, k, keywords)
        try:
            return cls(causal=causal, **keywords)
        except TypeError:
            known = cls.__dataclass_fields__.keys()
            unknown = sorted(keywords.keys() - known)
            names = ", ".join(sorted((known - _OF_RECORD) | {*FUNCTIONS}))
            raise TypeError(
                f"{unknown[0] if unknown else 'causal'} is no keyword here; known are {names}"
            ) from None

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Those that were given, by name."""
        return {n: getattr(self, n) for n in _TENSORS if getattr(self, n) is not None}

    def spec(self, q: torch.Tensor, k: torch.Tensor) -> Spec:
        """For q and k of four dimensions.

        Raises:
            TypeError, ValueError: An argument that no kernel takes; names it.
        """
        check_flags(causal=self.causal, top_left=self.top_left)
        _check_lengths(self, q, k)
        batch = self._batch(q)
        most_q = q.shape[1] if self.max_seqlen_q is None else min(self.max_seqlen_q, q.shape[1])
        rows_k = self._rows_of_keys(k)
        most_k = rows_k if self.max_seqlen_k is None else min(self.max_seqlen_k, rows_k)
        left, right = self._window(most_q, most_k)
        extras = Extras(
            alibi_slopes=self.alibi_slopes,
            bias=_repeated_along_keys(self.bias, k.shape[1]),
            sinks=in_float32(self.sinks),
            cu_seqlens_q=self.cu_seqlens_q,
            cu_seqlens_k=self.cu_seqlens_k,
            seqused_q=self.seqused_q,
            seqused_k=self.seqused_k,
            softcap=checked_cap(self.softcap),
            window_left=left,
            window_right=right,
            top_left=self.top_left,
            score=self.score,
            mod_tensors=None if self.mod_tensors is None else list(self.mod_tensors),
            key_ranges=self.key_ranges,
            rows_per_range=self.rows_per_range,
            **_dropout(self),
        )
        scales = Scales(*(getattr(self, name) for name in _SCALES))
        check_fp8_scales(**dict(zip(_SCALES, scales, strict=True)))
        places_or_rows = self.cu_seqlens_q, self.cu_seqlens_k, self.seqused_q
        whole = most_q == q.shape[1] and all(each is None for each in places_or_rows)
        whole = whole and self.block_table is None
        is_cache = whole and not self.top_left and all(t is None for t in scales)
        key: tuple[Hashable, ...] = (extras.variant, is_cache)
        if not extras.is_ragged:
            return Spec(key, extras, extras, None, None, is_cache, scales, self.block_table)
        extras = extras._replace(max_seqlen_q=most_q)
        key = (*key, batch, most_q, most_k, self.block_table is not None)
        return Spec(key, extras, extras, batch, most_k, is_cache, scales, self.block_table)

    def _rows_of_keys(self, k: torch.Tensor) -> int:
        """The most that a sequence may have."""
        return k.shape[1] * (1 if self.block_table is None else self.block_table.shape[-1])

    def _batch(self, q: torch.Tensor) -> int:
        places = self.cu_seqlens_q if self.cu_seqlens_q is not None else self.cu_seqlens_k
        return q.shape[0] if places is None else max(places.numel() - 1, 0)

    def _window(self, n_q: int, n_k: int) -> tuple[int, int]:
        """Its sides, without bounds that cut nothing off."""
        left, right = checked_window(self.window_size)
        if self.causal:
            right = 0
        # The last query has the most keys behind its diagonal, the first the most ahead.
        reach_left, reach_right = (n_q, n_k) if self.top_left else (n_k, n_q)
        left = _ALL if left >= reach_left - 1 else left
        right = _ALL if right >= reach_right - 1 and not self.causal else right
        return left, right


def _dropout(given: Semantics) -> dict[str, Any]:
    dropout_p = check_dropout(given.dropout_p)
    if given.rng_state is not None and given.rng_state.dtype != torch.int64:
        found = str(given.rng_state.dtype).removeprefix("torch.")
        raise TypeError(f"rng_state has dtype {found}; it must be int64")
    if dropout_p == 0:
        return {}
    if given.rng_state is None:
        raise ValueError(
            f"rng_state is None, but dropout_p is {dropout_p}; expected a tensor of two int64, a "
            "seed and an offset, on q's device"
        )
    return {"dropout_p": dropout_p, "rng_state": given.rng_state}


def tensors_in(semantics: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors among ``Semantics``' fields or ``attention``'s keywords, by name: those that
    functions capture are a list."""
    found = {name: semantics[name] for name in _TENSORS if semantics.get(name) is not None}
    if semantics.get(CAPTURED):
        found[CAPTURED] = list(semantics[CAPTURED])
    return found


_OF_RECORD = {"block_table", *Functions._fields, "key_ranges", "rows_per_range"}
_SCALES = ("q_scale", "k_scale", "v_scale")
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")
_TENSORS = (
    *("alibi_slopes", "sinks", "bias", "rng_state", "block_table", "key_ranges"),
    *_LENGTHS,
    *_SCALES,
)


def in_float32(t: torch.Tensor | None) -> torch.Tensor | None:
    """Sinks as kernels take them: weights of a model come in its own dtype."""
    is_short = isinstance(t, torch.Tensor) and t.dtype in (torch.float16, torch.bfloat16)
    return t.float() if t is not None and is_short else t


def _repeated_along_keys(t: torch.Tensor | None, n_keys: int) -> torch.Tensor | None:
    """``t`` with a number for each key: kernels read a row's elements one after the other."""
    if t is None or t.ndim != 4 or t.shape[-1] != 1 or n_keys == 1:
        return t
    return t.repeat(1, 1, 1, n_keys)  # of no elements, too, expand(...).contiguous() has stride 0


def checked_window(window_size: Any) -> tuple[int, int]:
    """The sides of a window. Raises TypeError, ValueError: they are none."""
    sides = tuple(window_size) if isinstance(window_size, tuple | list) else None
    if sides is None or len(sides) != 2 or not all(type(side) is int for side in sides):
        raise TypeError(
            f"window_size is {window_size!r}; expected two ints, (left, right); -1 is all keys"
        )
    if min(sides) < _ALL:
        raise ValueError(
            f"window_size is {sides}; expected at least 0 on either side, or -1 for all keys"
        )
    return sides[0], sides[1]


def checked_cap(softcap: Any) -> float:
    """A softcap. Raises TypeError, ValueError: it is none."""
    if isinstance(softcap, bool) or not isinstance(softcap, float | int):
        raise TypeError(f"softcap is a {type(softcap).__name__}; expected a float, or 0.0 for none")
    if softcap != 0 and not SMALLEST <= softcap <= LARGEST:
        raise ValueError(
            f"softcap is {softcap}; expected 0 (none), or a number from {SMALLEST} to {LARGEST}"
        )
    return float(softcap)


def _check_lengths(given: Semantics, q: torch.Tensor, k: torch.Tensor) -> None:
    """What the device alone knows is looked at where that costs nothing, or if it is asked for."""
    check_longest(max_seqlen_q=given.max_seqlen_q, max_seqlen_k=given.max_seqlen_k)
    of_k = len(k) if given.block_table is None else len(given.block_table), given._rows_of_keys(k)
    for side, (batch, rows) in (("q", q.shape[:2]), ("k", of_k)):
        places, used = getattr(given, f"cu_seqlens_{side}"), getattr(given, f"seqused_{side}")
        check_lengths(side, batch, rows, places, used, getattr(given, f"max_seqlen_{side}"))


def check_longest(**lengths: int | None) -> None:
    for name, value in lengths.items():
        if value is not None and (type(value) is not int or value < 0):
            raise ValueError(f"{name} is {value!r}; expected an int from 0 on, or None")


def check_lengths(
    side: str,
    batch: int,
    rows: int,
    places: torch.Tensor | None,
    used: torch.Tensor | None,
    most: int | None,
) -> None:
    """Raises ValueError for lengths of sequences that kernels cut off.

    Args:
        side: "q" or "k".
        batch, rows: Of the side's tensor; of packed ones 1 and the total.
        places, used, most: cu_seqlens, seqused and max_seqlen of the side.
    """
    lengths: list[int] | None = [rows] * batch  # None: they are not to be looked at
    if places is not None:
        lengths = _lengths_between(f"cu_seqlens_{side}", places, side, rows)
    if used is not None:
        lengths = _lengths_used(f"seqused_{side}", used, side, lengths)
    _check_none_longer(side, most, lengths)


def _check_none_longer(side: str, most: int | None, lengths: list[int] | None) -> None:
    """Rows beyond the most would not be computed, and bounds that reach them would be dropped."""
    if most is None or lengths is None:
        return
    if (longest := max(lengths, default=0)) > most:
        raise ValueError(f"max_seqlen_{side} is {most}, but a sequence has {longest} rows")


def may_look_at(t: torch.Tensor) -> bool:
    """Whether what lengths and places say may be looked at; while a graph is traced nothing is."""
    if is_compiling():
        return False
    if t.is_cpu:
        return True
    return asked_to_look() and not torch.cuda.is_current_stream_capturing()


@functools.cache
def asked_to_look() -> bool:
    """Read once: to look for a variable takes a microsecond, of each call."""
    return bool(settings.CHECK_LENGTHS.get())


def check_fp8_scales(**scales: torch.Tensor | None) -> None:
    """Raises TypeError, ValueError for what numbers of 8 bits cannot be multiplied with; they are
    looked at where that costs nothing, or if it is asked for."""
    for name, t in scales.items():
        if t is None:
            continue
        check_tensors(**{name: t})
        if t.dtype != torch.float32:
            raise TypeError(f"{name} has dtype {t.dtype}; it must be torch.float32")
        if is_of_tokens(t) or not may_look_at(t):
            continue  # of tokens many belong to no key
        if not (t.isfinite() & (t > 0)).all():
            raise ValueError(f"{name} has {t.min().item()}; expected positive numbers")


def is_of_tokens(scale: torch.Tensor) -> bool:
    """Whether each row of a cache has one."""
    return scale.ndim == 3


def _is_vector(t: torch.Tensor) -> bool:
    """If it is none, the library says what is wrong."""
    return t.dtype == torch.int32 and t.ndim == 1


def _lengths_between(name: str, places: torch.Tensor, side: str, rows: int) -> list[int] | None:
    if not _is_vector(places) or not may_look_at(places):
        return None
    values = places.tolist()
    if not values or values[0] < 0 or values[-1] > rows:
        raise ValueError(f"{name} is {values}; expected places from 0 to the {rows} rows of {side}")
    for before, after in pairwise(values):
        if after < before:
            raise ValueError(f"{name} falls from {before} to {after}; places must not fall")
    return [after - before for before, after in pairwise(values)]


def _lengths_used(
    name: str, used: torch.Tensor, side: str, lengths: list[int] | None
) -> list[int] | None:
    if lengths is None or not _is_vector(used) or not may_look_at(used):
        return None
    values = used.tolist()
    for value, most in zip(values, lengths, strict=False):
        if not 0 <= value <= most:
            raise ValueError(f"{name} has {value}; expected 0 to {most}, the rows of {side} there")
    return values
