"""``AttentionSpec``: what one call of attention computes, and the kernel's arguments for it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Any, NamedTuple

import torch

from flashsmith.configs import Variant
from flashsmith.dtype import DType
from flashsmith.ops.checks import ALL_KEYS, check_flags, checked_cap, checked_window
from flashsmith.ops.functions import FUNCTIONS, traced_functions
from flashsmith.ops.gate import CAPTURED, refuse_unknown
from flashsmith.ops.lengths import (
    are_for_the_device_alone,
    asked_to_look,
    check_fp8_scales,
    check_lengths,
    check_longest,
)
from flashsmith.problem import Problem
from flashsmith.reference.dropout import check_dropout
from flashsmith.runtime.call_args import CAUSAL_EXTRAS, FULL_EXTRAS, NO_SCALES, CallArgs, Scales

NO_WINDOW = (ALL_KEYS, ALL_KEYS)
OFF = 0.0  # softcap or dropout_p that is this very object was not passed


class AttentionSpec(NamedTuple):
    """The options of one call, by value: functions are traced already, and the caller can change
    nothing in it but the contents of tensors.

    Fields are keywords of ``attention``, or results of ``traced_functions`` in place of functions.
    With block_table, (sequences, pages), k and v are pages of a KV cache.
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
        """Whether the batch is varlen: sequences have different lengths."""
        return not (
            self.cu_seqlens_q is self.cu_seqlens_k is self.seqused_q is self.seqused_k is None
        )


FULL, CAUSAL = AttentionSpec(), AttentionSpec(causal=True)
_PLAIN = FULL[2:]  # a call with at most a causal mask and a scale
_SCALES = ("q_scale", "k_scale", "v_scale")
_TENSORS = (
    *("alibi_slopes", "sinks", "bias", "rng_state", "block_table", "key_ranges"),
    *("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"),
    *_SCALES,
)
FIELDS_OF_TENSORS = tuple((name, AttentionSpec._fields.index(name)) for name in _TENSORS)
_new_tuple = tuple.__new__
# These fields are not keywords of the caller.
_OF_THE_LIBRARY = {"block_table", CAPTURED, "score", "key_ranges", "rows_per_range"}


def spec_of(q: torch.Tensor, k: torch.Tensor, keywords: Mapping[str, Any]) -> AttentionSpec:
    """Returns the specification of a call on q and k for keywords of ``attention``.

    Raises:
        TypeError: ``attention`` has no such keyword; the message names it.
        TracingError, TypeError, ValueError: See ``traced_functions``.
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
    """Returns whether all options but a causal mask and a scale are the default objects."""
    return spec is FULL or spec is CAUSAL or all(map(is_, spec[2:], _PLAIN))


def make_spec(*fields: Any) -> AttentionSpec:
    """Returns the specification of all fields, in order, in half the time of the constructor."""
    return _new_tuple(AttentionSpec, fields)


def given_tensors(spec: AttentionSpec) -> Sequence[Any]:
    """Returns the tensors of a call one by one, including captured ones, for checks at every call;
    ``tensors_of`` adds their names."""
    if spec is FULL or spec is CAUSAL:
        return ()
    # Local names are faster, as in `resolve`; Dynamo does not support itemgetter.
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
    """Returns the tensors of a call by the names of their fields; captured tensors are a list."""
    if spec is FULL or spec is CAUSAL:
        return {}
    given: dict[str, Any] = {name: spec[i] for name, i in FIELDS_OF_TENSORS if spec[i] is not None}
    if spec.mod_tensors:
        given[CAPTURED] = list(spec.mod_tensors)
    return given


def keywords_of(spec: AttentionSpec) -> dict[str, Any]:
    """Returns the fields that do not have their default value, by name."""
    given = zip(AttentionSpec._fields, spec, FULL, strict=True)
    return {name: value for name, value, default in given if value is not default}


def with_tensors(spec: AttentionSpec, tensors: Mapping[str, Any]) -> AttentionSpec:
    """Returns ``spec`` with other tensors, by the names of ``tensors_of``; None removes one."""
    return spec._replace(**tensors) if tensors else spec


class ResolvedSpec(NamedTuple):
    """The resolved specification of a call, for q and k of some sizes.

    key: Distinguishes calls that need other kernels, at equal sizes.
    lengths: The number of sequences, and the max queries and keys of one, in a varlen batch.
    is_cache: Whether decode counts keys and diagonals as the call does: diagonals from the end,
        only keys have lengths, and 16-bit tensors.
    """

    key: Hashable
    extras: CallArgs
    lengths: tuple[int, int, int] | None = None
    is_cache: bool = True
    scales: Scales = NO_SCALES
    block_table: torch.Tensor | None = None

    @property
    def variant(self) -> Variant:
        """The variant that computes it, for rows that are not padded."""
        variant = self.extras.variant
        return variant if self.block_table is None else replace(variant, paged=True)

    def sizes(self, q: torch.Tensor, k: torch.Tensor) -> tuple[int, int, int]:
        """Returns the number of sequences, and the max queries and keys of one; k may be v."""
        return self.lengths or (q.shape[0], q.shape[-3], k.shape[-3])

    def problem(self, dtype: DType, q: torch.Tensor, k: torch.Tensor, d_v: int) -> Problem:
        """Returns the problem of sequences that are all as long as the longest one; q and k have
        four dimensions."""
        q_shape, k_shape = q.shape, k.shape
        if self.lengths is not None:
            batch, n_q, n_k = self.lengths
            q_shape = torch.Size((batch, n_q, *q.shape[2:]))
            k_shape = torch.Size((batch, n_k, *k.shape[2:]))
        return Problem.of_shapes(dtype, q_shape, k_shape, d_v)


_RESOLVED_FULL, _RESOLVED_CAUSAL = (
    ResolvedSpec(False, FULL_EXTRAS),
    ResolvedSpec(True, CAUSAL_EXTRAS),
)


def ready(spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> AttentionSpec:
    """Returns ``spec`` with sinks and bias converted to what kernels support.

    Raises:
        TypeError, ValueError: Kernels do not support lengths or scales that the host may read.
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
    """Raises TypeError or ValueError for invalid lengths and scales, as far as the host may read
    them."""
    if spec.is_varlen or not spec.max_seqlen_q is spec.max_seqlen_k is None:
        _check_lengths(spec, q, k)
    scales = {name: t for name in _SCALES if (t := getattr(spec, name)) is not None}
    if scales:
        check_fp8_scales(**scales)


def resolve(spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor) -> ResolvedSpec:
    """Returns the kernel's arguments for a call on q and k.

    Raises:
        TypeError, ValueError: No kernel supports an argument; the message names it.
    """
    if is_plain(spec):
        if type(spec.causal) is not bool:
            check_flags(causal=spec.causal)
        return _RESOLVED_CAUSAL if spec.causal else _RESOLVED_FULL
    # Local names are used because every call runs this, and a field of a tuple costs four times as
    # much.
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
        left, right = ALL_KEYS, 0 if causal else ALL_KEYS
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
        softcap, left, right, top_left, max_q if is_varlen else -1, max_k if is_varlen else -1,
        score, rows_per_range, dropout_p,
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
    """Returns the max number of keys of a sequence."""
    return k.shape[-3] if block_table is None else k.shape[-3] * block_table.shape[-1]


def _sequences(spec: AttentionSpec, q: torch.Tensor) -> int:
    """Returns the number of sequences."""
    offsets = spec.cu_seqlens_q if spec.cu_seqlens_q is not None else spec.cu_seqlens_k
    return q.shape[0] if offsets is None else max(offsets.numel() - 1, 0)


def _window(spec: AttentionSpec, n_q: int, n_k: int) -> tuple[int, int]:
    """Returns the sides of the window, without bounds that hide no key."""
    left, right = checked_window(spec.window_size)
    if spec.causal:
        right = 0
    # The last query has the most keys behind its diagonal, the first query the most ahead.
    reach_left, reach_right = (n_q, n_k) if spec.top_left else (n_k, n_q)
    left = ALL_KEYS if left >= reach_left - 1 else left
    right = ALL_KEYS if right >= reach_right - 1 and not spec.causal else right
    return left, right


def _dropout(spec: AttentionSpec) -> tuple[float, torch.Tensor | None]:
    """Returns the share of dropped weights, and the state that selects them."""
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
    """Returns sinks in float32, as kernels require; a model's weights have its dtype."""
    is_short = isinstance(t, torch.Tensor) and t.dtype in (torch.float16, torch.bfloat16)
    return t.float() if t is not None and is_short else t


def _repeated_along_keys(t: torch.Tensor | None, n_keys: int) -> torch.Tensor | None:
    """Returns ``t`` with a number for each key, because kernels read a row's elements in
    sequence."""
    if t is None or t.ndim != 4 or t.shape[-1] != 1 or n_keys == 1:
        return t
    return t.repeat(1, 1, 1, n_keys)  # expand(...).contiguous() of no elements has stride 0


def normal_window(sides: Any) -> Any:
    """Returns a window's sides as a tuple; no window is always the same object."""
    if type(sides) is list:
        sides = tuple(sides)
    return NO_WINDOW if type(sides) is tuple and sides == NO_WINDOW else sides
