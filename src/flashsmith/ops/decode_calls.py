"""How ``decode`` finds its kernel, once for all calls that look alike, and launches it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from flashsmith.configs import DecodeKernelConfig, KernelId, Variant
from flashsmith.configs.decode import DECODE_FAMILIES, has_many_tiles
from flashsmith.configs.workload import DecodeWorkload, d_head_of_rows
from flashsmith.gpus import count_multiprocessors
from flashsmith.ops.cache import Cache, New
from flashsmith.ops.checks import (
    FP8,
    check_config,
    check_rank,
    check_scale,
    check_tensors,
    mark_written,
    needs_gradient,
    refuse_gradients,
)
from flashsmith.ops.decode_checks import check_decode, check_rows, checked_splits
from flashsmith.ops.first_use import check_before_building, find_first
from flashsmith.ops.functions import NO_FUNCTIONS, Functions
from flashsmith.ops.gate import CAPTURED, explain
from flashsmith.ops.lengths import is_of_tokens
from flashsmith.ops.many_queries import FEWEST_ROWS, ManyQueries
from flashsmith.ops.spec import NO_WINDOW, AttentionSpec, checked_cap, checked_window
from flashsmith.runtime import DecodeKernel, DecodeTensors, Extras, Splitting, find_decode
from flashsmith.runtime.workspace import Scratch
from flashsmith.selection.choose import forget_with_calls
from flashsmith.selection.decode_tables import DecodeChoice, choose_tuned_decode
from flashsmith.selection.select import dtype_of, gpu_of, remember_reason, why_chosen

_CONFIGS = tuple(family.config for family in DECODE_FAMILIES)
_ALL = -1  # of a window's sides: every key
_ALIGNMENT = 16  # bytes of a tensor's first element, at most


class Asked(NamedTuple):
    """What a call asks for beside its tensors."""

    config: DecodeKernelConfig | None
    causal: bool
    window_size: Any
    softcap: Any
    splits: Any

    @property
    def window_left(self) -> int:
        return checked_window(self.window_size)[0]

    def turns_in_a_row(self, rows: int) -> bool:
        """Whether query i is turned as new key i, as FlashAttention does: by the mask that the
        caller asks for, whether or not it hides a key; a side of all ``rows`` is no window."""
        return self.causal or any(0 <= side < rows for side in checked_window(self.window_size))


class Call(NamedTuple):
    """A call's tensors."""

    q: torch.Tensor
    cache: Cache
    new: New | None
    out: torch.Tensor | None
    with_lse: bool
    alibi_slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    functions: Functions = NO_FUNCTIONS

    @property
    def given(self) -> list[Any]:
        """Its tensors, and what was passed in the place of some."""
        q, cache, new, out, _, alibi_slopes, sinks, functions = self
        k, v, lengths, *where_and_scales = cache
        optional = (
            *where_and_scales, *(() if new is None else new[:4]), alibi_slopes, sinks, out,
            None if type(lengths) is int else lengths, *(functions.mod_tensors or ()),
        )  # fmt: skip
        return [q, k, v, *[t for t in optional if t is not None]]

    @property
    def named(self) -> dict[str, Any]:
        """What was given, by the names of ``decode``'s arguments; captured tensors are a list."""
        q, cache, new, out, _, alibi_slopes, sinks, functions = self
        k, v, lengths, table, batch_idx, leftpad, k_scale, v_scale = cache
        optional = {
            "cache_seqlens": None if type(lengths) in (int, torch.SymInt) else lengths,
            "block_table": table, "cache_batch_idx": batch_idx, "cache_leftpad": leftpad,
            "k_scale": k_scale, "v_scale": v_scale, "alibi_slopes": alibi_slopes, "sinks": sinks,
            "out": out, CAPTURED: functions.mod_tensors,
        }  # fmt: skip
        if new is not None:
            names = ("k_new", "v_new", "rotary_cos", "rotary_sin")
            optional |= dict(zip(names, new[:4], strict=True))
        given = {name: t for name, t in optional.items() if t is not None}
        return {"q": q, "k_cache": k, "v_cache": v, **given}

    def refuse_gradients(self) -> None:
        """Raises NotImplementedError for a tensor that requires a gradient, by any name."""
        if needs_gradient(*self.given):
            refuse_gradients(**self.named)

    def check(self) -> None:
        """Raises TypeError, ValueError: no kernel takes the tensors."""
        check_decode(self.q, self.cache, self.new, self.out, self.alibi_slopes, self.sinks)

    @property
    def n_new(self) -> int:
        return 0 if self.new is None else self.new.k.shape[1]

    @property
    def of_append(self) -> Hashable:
        """What its kernel depends on, which runs before the library sees all of the call; and how
        what it does not read lies, so that nothing is written of a call that is then refused."""
        if self.new is None:
            return None
        cache = self.cache
        scales = (None if t is None else t.ndim for t in (cache.k_scale, cache.v_scale))
        unread = self.q, self.out, self.alibi_slopes, self.sinks, cache.leftpad
        looks = (
            None if t is None else (t.dtype, t.shape, t.stride(), t.data_ptr() % _ALIGNMENT)
            for t in unread
        )
        return self.n_new, cache.v.shape, *scales, *looks

    def extras(self, numbers: tuple[Any, ...]) -> tuple[Any, ...]:
        """``Extras``, whose numbers come last."""
        lengths, read = self.cache.seqlens, self.functions.mod_tensors
        optional = self.alibi_slopes, None, self.sinks
        return (*optional, *_NO_LENGTHS, lengths, *_NONE_BETWEEN, read, *numbers)

    def tensors(self, o: torch.Tensor, lse: torch.Tensor | None) -> tuple[Any, ...]:
        """``DecodeTensors``."""
        k, v, _, *where_and_scales = self.cache
        return self.q, k, v, o, lse, *where_and_scales


_NO_LENGTHS = (None, None, None)  # of Extras: places of queries and keys, lengths of queries
_FIRST_NUMBER = Extras._fields.index("softcap")
# From the lengths of keys to what functions read, the last before the numbers.
_NONE_BETWEEN = (None,) * (_FIRST_NUMBER - Extras._fields.index("seqused_k") - 2)

_Result = tuple[torch.Tensor, torch.Tensor | None, float]


class _Repeatable(NamedTuple):
    """The last call of its kind, and how to make it again."""

    kernel: DecodeKernel
    again: Callable[..., bool]  # the kernel's
    config: DecodeKernelConfig | None  # the caller's is kept alive: its id is in the kind
    scratch: Scratch
    numbers: tuple[Any, ...]
    in_a_row: bool  # as of ``New.append``


def _kind(asked: Asked, call: Call) -> Hashable:
    """What calls have in common that make one again: all that the library does not see of them,
    and of what it sees enough that calls which take turns are remembered side by side."""
    config, causal, sides, softcap, splits = asked
    q, cache, _, _, with_lse, _, sinks, functions = call
    k, table = cache.k, cache.block_table
    # True, 1 and 1.0 are equal, but not all of them are taken.
    numbers = softcap, type(softcap), splits, type(splits)
    window = sides if sides is NO_WINDOW else checked_window(sides)
    return (
        id(config), causal, window, *numbers, with_lse, functions.score,
        call.of_append, q.shape, k.shape, k.dtype, table is not None and table.shape,
        sinks is None, q.device,
    )  # fmt: skip


_last: dict[Hashable, _Repeatable] = {}
forget_with_calls(_last.clear)
_CALLS_REMEMBERED = 4096


def run(asked: Asked, call: Call, softmax_scale: Any, timed: bool) -> _Result:
    """o, lse and milliseconds, if they are asked for."""
    if torch.is_grad_enabled():
        call.refuse_gradients()
    found = _run(asked, call, softmax_scale, timed)
    if call.out is not None:
        mark_written(call.out)
    return found


def _run(asked: Asked, call: Call, softmax_scale: Any, timed: bool) -> _Result:
    """Most calls look like one before: the library sees whether this one does, and makes it
    again."""
    q, cache = call.q, call.cache
    try:
        is_ready = cache.is_ready
        if not is_ready:
            call = _checked(call, asked)
        if q.shape[1] * q.shape[2] > FEWEST_ROWS * cache.k.shape[2] and not timed:
            found = _run_as_forward(asked, call, softmax_scale, is_checked=not is_ready)
            if found is not None:
                return found
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else check_scale(softmax_scale)
        last = None if timed else _last.get(_kind(asked, call))
        found = None if last is None else _repeat(last, call, scale)
        return found or _run_anew(asked, _checked(call, asked) if is_ready else call, scale, timed)
    except Exception:
        check_rows(q, cache)
        explain(**call.named)
        if call.new is not None:
            call.new.check(q)
        raise


def _run_as_forward(
    asked: Asked, call: Call, softmax_scale: Any, *, is_checked: bool
) -> _Result | None:
    """By kernels of the forward; None: those of decode are for it. With splits given, the caller
    wants bits that the forward does not promise."""
    if asked.config is not None or asked.splits != 0 or call.functions.score != 0:
        return None
    numbers = _numbers(asked, call)
    extras = Extras(*call.extras(numbers))
    variant = replace(extras.variant, ragged=True)
    if not ManyQueries(call.q, call.cache).are_for_forward(variant, call.out):
        return None
    if not is_checked:
        call = _checked(call, asked)
    if call.new is not None:
        kernel = _find(asked, call, DecodeTensors(*call.tensors(*_results(call))), extras)
        lengths = call.cache.seqlens + call.n_new
        call = _appended(kernel, call, asked.turns_in_a_row(call.cache.rows))
        call = call._replace(cache=call.cache._replace(seqlens=lengths))
    spec = AttentionSpec(
        asked.causal, softmax_scale, asked.window_size, asked.softcap, call.alibi_slopes, call.sinks
    )
    return *ManyQueries(call.q, call.cache).run(spec, call.out, call.with_lse), 0.0


def _checked(call: Call, asked: Asked) -> Call:
    return call._replace(cache=call.cache.checked(call.q, call.new, asked.window_left))


def _repeat(last: _Repeatable, call: Call, scale: float) -> _Result | None:
    """None: the call looks unlike the last; or it is refused, in the words of a first call."""
    o, lse = _results(call)
    try:
        if call.new is not None:
            call = _appended(last.kernel, call, last.in_a_row)
        workspace, counters = last.scratch()
        tensors, extras = call.tensors(o, lse), call.extras(last.numbers)
        done = last.again(*tensors, counters, workspace, scale, *extras)
    except (TypeError, ValueError):
        return None
    return (o, lse, 0.0) if done else None


def _run_anew(asked: Asked, call: Call, scale: float, timed: bool) -> _Result:
    """Of a call whose cache has been checked; remembers how to do it again."""
    if asked.config is not None:
        check_config("cfg", asked.config, _CONFIGS)
    splits = checked_splits(asked.splits)
    q, numbers = call.q, _numbers(asked, call)
    extras = Extras(*call.extras(numbers))
    tensors = DecodeTensors(*call.tensors(*_results(call)))
    kernel = _find(asked, call, tensors, extras)
    how = Splitting(splits, call.n_new)
    plan = kernel.plan(tensors, how=how, extras=extras)
    in_a_row = asked.turns_in_a_row(call.cache.rows)
    if call.new is not None:
        tensors = tensors._replace(q=_appended(kernel, call, in_a_row).q)
    scratch = Scratch(plan, q.device)
    workspace, counters = scratch()
    if timed:
        milliseconds = kernel(
            tensors, scale, timed=True, how=how, counters=counters, workspace=workspace,
            extras=extras,
        )  # fmt: skip
        return tensors.o, tensors.lse, milliseconds
    again = kernel.repeatable(tensors, counters, workspace, scale, how, extras)
    if len(_last) >= _CALLS_REMEMBERED:
        _last.clear()
    _last[_kind(asked, call)] = _Repeatable(kernel, again, asked.config, scratch, numbers, in_a_row)
    return tensors.o, tensors.lse, 0.0


def _numbers(asked: Asked, call: Call) -> tuple[Any, ...]:
    """The last of ``Extras``."""
    left, right = _window(asked.window_size, asked.causal, call.q.shape[1], call.cache.rows)
    softcap, score = checked_cap(asked.softcap), call.functions.score
    return Extras(softcap=softcap, window_left=left, window_right=right, score=score)[
        _FIRST_NUMBER:
    ]


def _appended(kernel: DecodeKernel, call: Call, in_a_row: bool) -> Call:
    """With new keys in the cache, and queries that are turned as these are."""
    assert call.new is not None
    return call._replace(q=call.new.append(kernel, call.q, call.cache, in_a_row))


def _results(call: Call) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Where o and lse go."""
    o, lse = call.out, None
    if o is not None and not call.with_lse:
        return o, None
    q = call.q
    if o is None:
        d_v = call.cache.v.shape[-1]
        # Mostly like q, which is faster than by sizes, which torch would convert.
        if d_v == q.shape[-1]:
            o = torch.empty_like(q, memory_format=torch.contiguous_format)
        else:
            o = q.new_empty((*q.shape[:-1], d_v))
    if call.with_lse:
        batch, n_q, n_heads, _ = q.shape
        lse = q.new_empty((batch, n_heads, n_q), dtype=torch.float32)
    return o, lse


def _find(asked: Asked, call: Call, tensors: DecodeTensors, extras: Extras) -> DecodeKernel:
    """The kernel for a call, which is refused before one is built for it."""
    config, reason = asked.config, None
    q, k, v = tensors.q, tensors.k_cache, tensors.v_cache
    check_tensors(q=q, k_cache=k, v_cache=v, o=tensors.o)
    for name, t in {"q": q, "k_cache": k, "v_cache": v, "out": tensors.o}.items():
        check_rank(name, t, None)
    d_head, d_v = q.shape[-1], v.shape[-1]
    of_rows = d_head_of_rows(d_head, d_v)
    if config is None:
        config, reason = _choose(asked, tensors, extras, of_rows)
    check_before_building(config, q, k, v, suffix="_cache", o=tensors.o)
    call.check()
    # Whether there are lengths is seen at every call.
    is_padded = {d_head, d_v} != {config.d_head}
    variant = replace(extras.variant, ragged=False, padded=is_padded)
    if not config.serves_variant(variant):
        raise ValueError(
            f"cfg is {config}, which has no kernels for {variant.name}; pass None, or a "
            "configuration of the sm80 family"
        )
    if reason is not None:
        remember_reason(config, variant, q.device, reason)
    return _kernel_for(config, variant, q.device)


def _choose(asked: Asked, tensors: DecodeTensors, extras: Extras, d_head: int) -> DecodeChoice:
    """With ``splits`` it must not depend on the other requests, so not on how many."""
    q, k = tensors.q, tensors.k_cache
    gpu, capability = gpu_of(q.device)
    heads_kv = max(k.shape[2], 1)
    multiprocessors = None if gpu is None else count_multiprocessors(gpu)
    cache = Cache(k, tensors.v_cache, None, tensors.block_table, None, tensors.cache_leftpad)
    workload = DecodeWorkload(
        dtype_of(q.dtype, q.device),
        d_head,
        rows=q.shape[1] * (q.shape[2] // heads_kv),
        fp8_cache=k.dtype == FP8,
        token_scales=any(
            t is not None and is_of_tokens(t) for t in (tensors.k_scale, tensors.v_scale)
        ),
        many_tiles=asked.splits == 0 and has_many_tiles(q.shape[0], heads_kv, multiprocessors),
        in_boxes=cache.is_in_boxes and not extras.variant.window,
    )
    return choose_tuned_decode(workload, gpu, capability)


@functools.lru_cache(_CALLS_REMEMBERED)
def _kernel_for(config: DecodeKernelConfig, variant: Variant, device: torch.device) -> DecodeKernel:
    reason = why_chosen(config, variant, device) or "named by the caller"
    return find_first(find_decode, KernelId(config, variant), device, reason)


def _window(window_size: Any, causal: bool, n_q: int, rows: int) -> tuple[int, int]:
    """Its sides, without bounds that cut nothing off."""
    left, right = checked_window(window_size)
    right = 0 if causal else right
    return _ALL if left >= rows - 1 else left, _ALL if right >= n_q - 1 else right
