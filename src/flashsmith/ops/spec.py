"""``AttentionSpec``: what one call of attention computes, and what kernels are told of it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Any, NamedTuple

import torch

from flashsmith.configs import Variant
from flashsmith.ops.checks import LARGEST, SMALLEST, check_flags
from flashsmith.ops.functions import FUNCTIONS, traced_functions
from flashsmith.ops.gate import CAPTURED, refuse_unknown
from flashsmith.ops.lengths import (
    are_for_the_device_alone,
    asked_to_look,
    check_fp8_scales,
    check_lengths,
    check_longest,
)
from flashsmith.reference.dropout import check_dropout
from flashsmith.runtime.call_args import CAUSAL_EXTRAS, FULL_EXTRAS, NO_SCALES, CallArgs, Scales

_ALL = -1  # of a window's sides: every key
NO_WINDOW = (_ALL, _ALL)
OFF = 0.0  # of a softcap and of dropout_p; an argument that is this very object was not given


class AttentionSpec(NamedTuple):
    """What one call computes beside softmax(q k^T) v, by value: its functions are traced already,
    and nothing in it can be changed by the caller but what tensors hold.

    Fields are keywords of ``attention``, or what ``traced_functions`` gives in place of them.
    block_table, (sequences, pages), says that k and v are pages of a KV cache.
    """

    causal: bool = False
    softmax_scale: float | None = None
    window_size: tuple[int, int] = NO_WINDOW
    softcap: float = OFF
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
    dropout_p: float = OFF
    rng_state: torch.Tensor | None = None
    q_scale: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None

    @property
    def is_varlen(self) -> bool:
        """Whether sequences have lengths of their own."""
        return not (
            self.cu_seqlens_q is self.cu_seqlens_k is self.seqused_q is self.seqused_k is None
        )


FULL, CAUSAL = AttentionSpec(), AttentionSpec(causal=True)
_PLAIN = FULL[2:]  # of a call that has a causal mask and a scale at most
_SCALES = ("q_scale", "k_scale", "v_scale")
_TENSORS = (
    *("alibi_slopes", "sinks", "bias", "rng_state", "block_table", "key_ranges"),
    *("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"),
    *_SCALES,
)
_FIELDS_OF_TENSORS = tuple((name, AttentionSpec._fields.index(name)) for name in _TENSORS)
_MOD_TENSORS = AttentionSpec._fields.index(CAPTURED)
_new_tuple = tuple.__new__
# Fields that are no keywords of the caller.
_OF_THE_LIBRARY = {"block_table", CAPTURED, "score", "key_ranges", "rows_per_range"}


def spec_of(q: torch.Tensor, k: torch.Tensor, keywords: Mapping[str, Any]) -> AttentionSpec:
    """Returns the specification of a call on q and k by ``attention``'s keywords.

    Raises:
        TypeError: ``attention`` has no such keyword; names it.
        TracingError, TypeError, ValueError: As ``traced_functions``.
    """
    given = dict(keywords)
    if not given.keys().isdisjoint(FUNCTIONS):
        refuse_unknown(q=q, k=k)
        functions = {name: given.pop(name, None) for name in FUNCTIONS}
        given |= traced_functions(q, k, given.get("cu_seqlens_q") is not None, **functions)
    try:
        return AttentionSpec(**given)
    except TypeError:
        known = set(AttentionSpec._fields)
        unknown = sorted(given.keys() - known)
        names = ", ".join(sorted((known - _OF_THE_LIBRARY) | {*FUNCTIONS}))
        raise TypeError(f"{unknown[0]} is no keyword here; known are {names}") from None


def is_plain(spec: AttentionSpec) -> bool:
    """Returns whether nothing but a causal mask and a scale are asked for, by default values."""
    return spec is FULL or spec is CAUSAL or all(map(is_, spec[2:], _PLAIN))


def make_spec(*fields: Any) -> AttentionSpec:
    """Returns the specification of all its fields, in order; in half of the time that its class
    takes."""
    return _new_tuple(AttentionSpec, fields)


def given_tensors(spec: AttentionSpec) -> Sequence[Any]:
    """Returns the tensors of a call one by one, captured ones, too, for what every call asks;
    ``tensors_of`` says their names."""
    if spec is FULL or spec is CAUSAL:
        return ()
    # By local names, as in `resolve`; Dynamo knows no itemgetter.
    (
        _, _, _, _, alibi_slopes, sinks, bias, _, cu_seqlens_q, cu_seqlens_k, _, _,
        seqused_q, seqused_k, block_table, _, _, key_ranges, _, _, rng_state,
        q_scale, k_scale, v_scale,
    ) = spec  # fmt: skip
    fields = (
        alibi_slopes, sinks, bias, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, block_table,
        key_ranges, rng_state, q_scale, k_scale, v_scale,
    )  # fmt: skip
    given = [t for t in fields if t is not None]
    return [*given, *spec.mod_tensors] if spec.mod_tensors else given


def tensors_of(spec: AttentionSpec) -> dict[str, Any]:
    """Returns the tensors of a call by the names of the fields; captured ones are a list."""
    if spec is FULL or spec is CAUSAL:
        return {}
    given: dict[str, Any] = {name: spec[i] for name, i in _FIELDS_OF_TENSORS if spec[i] is not None}
    if spec.mod_tensors:
        given[CAPTURED] = list(spec.mod_tensors)
    return given


def keywords_of(spec: AttentionSpec) -> dict[str, Any]:
    """Returns the fields that do not have their default value, by name."""
    given = zip(AttentionSpec._fields, spec, FULL, strict=True)
    return {name: value for name, value, default in given if value is not default}


def with_tensors(spec: AttentionSpec, tensors: Mapping[str, Any]) -> AttentionSpec:
    """Returns ``spec`` with other tensors, by the names of ``tensors_of``; None takes one away."""
    return spec._replace(**tensors) if tensors else spec


class Apart(NamedTuple):
    """A specification without its tensors, which somebody else keeps.

    fields: Those of the specification, None in place of a tensor.
    places: Of the tensors among them, in the order in which they are kept.
    n_captured: How many tensors follow that functions read.
    """

    fields: AttentionSpec
    places: tuple[int, ...] = ()
    n_captured: int = 0

    def with_tensors(self, kept: Sequence[torch.Tensor]) -> AttentionSpec:
        """Returns the specification with these tensors."""
        if not kept:
            return self.fields
        fields: list[Any] = list(self.fields)
        for place, t in zip(self.places, kept, strict=False):
            fields[place] = t
        if self.n_captured:
            fields[_MOD_TENSORS] = list(kept[len(self.places) :])
        return make_spec(*fields)


def taken_apart(spec: AttentionSpec) -> tuple[Apart, list[torch.Tensor]]:
    """Returns ``spec`` without its tensors, and these."""
    if spec is FULL or spec is CAUSAL:
        return Apart(spec), []
    fields: list[Any] = list(spec)
    places = tuple([i for _, i in _FIELDS_OF_TENSORS if fields[i] is not None])
    kept = [fields[i] for i in places]
    for i in places:
        fields[i] = None
    captured = spec.mod_tensors or ()
    if captured:
        fields[_MOD_TENSORS] = None
    return Apart(make_spec(*fields), places, len(captured)), [*kept, *captured]


class ResolvedSpec(NamedTuple):
    """What a call's specification comes to for q and k of some sizes.

    key: Tells calls of other kernels apart, of sizes that are alike.
    lengths: How many sequences there are, and the most queries and keys that one has, if they have
        lengths of their own.
    is_cache: Whether decode counts keys and diagonals as the call does; these from the ends, and of
        lengths there are those of keys alone; of 16 bits.
    """

    key: Hashable
    extras: CallArgs
    lengths: tuple[int, int, int] | None = None
    is_cache: bool = True
    scales: Scales = NO_SCALES
    block_table: torch.Tensor | None = None

    @property
    def variant(self) -> Variant:
        """What computes it, for rows that are not padded."""
        variant = self.extras.variant
        return variant if self.block_table is None else replace(variant, paged=True)


_RESOLVED_FULL, _RESOLVED_CAUSAL = (
    ResolvedSpec(False, FULL_EXTRAS),
    ResolvedSpec(True, CAUSAL_EXTRAS),
)


def ready(spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> AttentionSpec:
    """Returns ``spec`` with what kernels take in place of what is converted for them.

    Raises:
        TypeError, ValueError: Lengths or scales that the host may look at, and kernels do not take.
    """
    if q.is_cpu or asked_to_look():
        _look(spec, q, k)
    sinks, bias = spec.sinks, spec.bias
    if sinks is not None and sinks.dtype != torch.float32:
        spec = spec._replace(sinks=in_float32(sinks))
    if bias is not None and bias.shape[-1] == 1:
        spec = spec._replace(bias=_repeated_along_keys(bias, _rows_of_keys(spec.block_table, k)))
    return spec


def _look(spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> None:
    """Raises TypeError, ValueError for lengths and scales; looks at those that the host may see."""
    if spec.is_varlen or not spec.max_seqlen_q is spec.max_seqlen_k is None:
        _check_lengths(spec, q, k)
    scales = {name: t for name in _SCALES if (t := getattr(spec, name)) is not None}
    if scales:
        check_fp8_scales(**scales)


def resolve(spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> ResolvedSpec:
    """Returns what kernels are told of a call on q and k.

    Raises:
        TypeError, ValueError: An argument that no kernel takes; names it.
    """
    if is_plain(spec):
        if type(spec.causal) is not bool:
            check_flags(causal=spec.causal)
        return _RESOLVED_CAUSAL if spec.causal else _RESOLVED_FULL
    # By local names: every call comes here, and a field of a tuple costs four times as much.
    (
        causal, _, window_size, softcap, alibi_slopes, sinks, bias, top_left,
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k,
        block_table, score, mod_tensors, key_ranges, rows_per_range, dropout_p, rng_state,
        q_scale, k_scale, v_scale,
    ) = spec  # fmt: skip
    if not type(causal) is type(top_left) is bool:
        check_flags(causal=causal, top_left=top_left)
    _look(spec, q, k)
    is_varlen = not cu_seqlens_q is cu_seqlens_k is seqused_q is seqused_k is None
    rows_q, rows_k = q.shape[-3], _rows_of_keys(block_table, k)
    max_q = rows_q if max_seqlen_q is None or max_seqlen_q > rows_q else max_seqlen_q
    max_k = rows_k if max_seqlen_k is None or max_seqlen_k > rows_k else max_seqlen_k
    if window_size is NO_WINDOW:
        left, right = _ALL, 0 if causal else _ALL
    else:
        left, right = _window(spec, max_q, max_k)
    if rng_state is not None or type(dropout_p) is not float or dropout_p != 0:
        dropout_p, rng_state = _dropout(spec)
    softcap = checked_cap(softcap)
    extras = CallArgs(
        alibi_slopes, None if bias is None else _repeated_along_keys(bias, rows_k),
        None if sinks is None else in_float32(sinks),
        cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, key_ranges, rng_state,
        None if mod_tensors is None else list(mod_tensors),
        softcap, left, right, top_left, max_q if is_varlen else -1, score, rows_per_range,
        dropout_p,
    )  # fmt: skip
    scales = NO_SCALES
    if not q_scale is k_scale is v_scale is None:
        scales = Scales(q_scale, k_scale, v_scale)
    is_cache = (
        max_q == rows_q
        and cu_seqlens_q is cu_seqlens_k is seqused_q is block_table is None
        and not top_left
        and scales is NO_SCALES
    )
    key = (
        left >= 0, right >= 0, softcap > 0, alibi_slopes is None, bias is None, sinks is None,
        rng_state is None, is_varlen, score, is_cache, block_table is None,
    )  # fmt: skip
    lengths = (_sequences(spec, q), max_q, max_k) if is_varlen else None
    return ResolvedSpec(key, extras, lengths, is_cache, scales, block_table)


def _check_lengths(spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> None:
    check_longest(max_seqlen_q=spec.max_seqlen_q, max_seqlen_k=spec.max_seqlen_k)
    of_q, of_k = (spec.cu_seqlens_q, spec.seqused_q), (spec.cu_seqlens_k, spec.seqused_k)
    if not are_for_the_device_alone(*of_q):
        check_lengths("q", q.shape[0], q.shape[-3], *of_q, spec.max_seqlen_q)
    if not are_for_the_device_alone(*of_k):
        batch = k.shape[0] if spec.block_table is None else spec.block_table.shape[0]
        rows = _rows_of_keys(spec.block_table, k)
        check_lengths("k", batch, rows, *of_k, spec.max_seqlen_k)


def _rows_of_keys(block_table: torch.Tensor | None, k: torch.Tensor) -> int:
    """The most that a sequence may have."""
    return k.shape[-3] if block_table is None else k.shape[-3] * block_table.shape[-1]


def _sequences(spec: AttentionSpec, q: torch.Tensor) -> int:
    """Returns how many there are."""
    offsets = spec.cu_seqlens_q if spec.cu_seqlens_q is not None else spec.cu_seqlens_k
    return q.shape[0] if offsets is None else max(offsets.numel() - 1, 0)


def _window(spec: AttentionSpec, n_q: int, n_k: int) -> tuple[int, int]:
    """Returns the sides of the window, without bounds that cut nothing off."""
    left, right = checked_window(spec.window_size)
    if spec.causal:
        right = 0
    # The last query has the most keys behind its diagonal, the first the most ahead.
    reach_left, reach_right = (n_q, n_k) if spec.top_left else (n_k, n_q)
    left = _ALL if left >= reach_left - 1 else left
    right = _ALL if right >= reach_right - 1 and not spec.causal else right
    return left, right


def _dropout(spec: AttentionSpec) -> tuple[float, torch.Tensor | None]:
    """Returns the share of weights that are dropped, and the state that says which."""
    dropout_p = check_dropout(spec.dropout_p)
    if spec.rng_state is not None and spec.rng_state.dtype != torch.int64:
        found = str(spec.rng_state.dtype).removeprefix("torch.")
        raise TypeError(f"rng_state has dtype {found}; it must be int64")
    if dropout_p == 0:
        return 0.0, None
    if spec.rng_state is None:
        raise ValueError(
            f"rng_state is None, but dropout_p is {dropout_p}; expected a tensor of two int64, a "
            "seed and an offset, on q's device"
        )
    return dropout_p, spec.rng_state


def in_float32(t: torch.Tensor | None) -> torch.Tensor | None:
    """Sinks as kernels take them: weights of a model come in its own dtype."""
    is_short = isinstance(t, torch.Tensor) and t.dtype in (torch.float16, torch.bfloat16)
    return t.float() if t is not None and is_short else t


def _repeated_along_keys(t: torch.Tensor | None, n_keys: int) -> torch.Tensor | None:
    """``t`` with a number for each key: kernels read a row's elements one after the other."""
    if t is None or t.ndim != 4 or t.shape[-1] != 1 or n_keys == 1:
        return t
    return t.repeat(1, 1, 1, n_keys)  # of no elements, too, expand(...).contiguous() has stride 0


def normal_window(sides: Any) -> Any:
    """In a tuple, which is always the same one if it is no window."""
    if type(sides) is list:
        sides = tuple(sides)
    return NO_WINDOW if type(sides) is tuple and sides == NO_WINDOW else sides


def checked_window(window_size: Any) -> tuple[int, int]:
    """Returns the sides of a window. Raises TypeError, ValueError: they are none."""
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
    """Returns a softcap. Raises TypeError, ValueError: it is none."""
    if isinstance(softcap, bool) or not isinstance(softcap, float | int):
        raise TypeError(f"softcap is a {type(softcap).__name__}; expected a float, or 0.0 for none")
    if softcap != 0 and not SMALLEST <= softcap <= LARGEST:
        raise ValueError(
            f"softcap is {softcap}; expected 0 (none), or a number from {SMALLEST} to {LARGEST}"
        )
    return float(softcap)
