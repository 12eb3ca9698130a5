"""How ``decode`` finds its kernel, once for all calls that look alike, and launches it."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from flashsmith.configs import DecodeKernelConfig, KernelId, Variant
from flashsmith.configs.decode import DECODE_FAMILIES, has_many_tiles
from flashsmith.configs.workload import DecodeWorkload, d_head_of_rows
from flashsmith.gpus import count_multiprocessors
from flashsmith.ops.bound_decode import BoundDecode
from flashsmith.ops.checks import (
    FP8,
    check_config,
    check_rank,
    check_scale,
    check_tensors,
    mark_written,
)
from flashsmith.ops.choices import MAX_CHOICES, Choices
from flashsmith.ops.decode_call import DecodeCall, DecodeOptions
from flashsmith.ops.decode_checks import check_rows, checked_splits
from flashsmith.ops.dispatch import MIN_FORWARD_ROWS, is_for_forward
from flashsmith.ops.first_use import check_before_building, find_first
from flashsmith.ops.forward_over_cache import run_over_cache
from flashsmith.ops.gate import explain
from flashsmith.ops.lengths import is_of_tokens
from flashsmith.ops.spec import NO_WINDOW, AttentionSpec, checked_cap, checked_window
from flashsmith.problem import size_class
from flashsmith.runtime import DecodeKernel, Extras, Splitting, find_decode
from flashsmith.runtime.decoding import NO_SOFTMAX
from flashsmith.runtime.workspace import Scratch
from flashsmith.selection.decode_tables import DecodeChoice, choose_tuned_decode
from flashsmith.selection.select import dtype_of, gpu_of, remember_reason, why_chosen

_CONFIGS = tuple(family.config for family in DECODE_FAMILIES)
_ALL = -1  # of a window's sides: every key


_Result = tuple[torch.Tensor, torch.Tensor | None, float]


@dataclass(frozen=True, slots=True, eq=False)
class _Choice:
    """The kernel of all calls that are alike. config: The caller's is kept alive: its id is in the
    key."""

    config: DecodeKernelConfig | None
    kernel: DecodeKernel
    how: Splitting
    call: BoundDecode


class _Known(NamedTuple):
    """What is known of calls of the same sizes.

    numbers: ``Extras`` without tensors.
    in_a_row: As of ``KVAppend.arguments``.
    """

    choice: _Choice
    numbers: Extras
    in_a_row: bool


_choices: Choices[_Choice] = Choices()
_known: Choices[_Known] = Choices()


def run(asked: DecodeOptions, call: DecodeCall, timed: bool = False) -> _Result:
    """o, lse and milliseconds, if they are asked for; no tensor requires a gradient."""
    found = _run(asked, call, timed)
    if call.out is not None:
        mark_written(call.out)
    return found


def _run(asked: DecodeOptions, call: DecodeCall, timed: bool) -> _Result:
    """The hot path. A kernel is chosen once for all calls that are alike, whatever their batch size
    and lengths; the library checks and plans each call, or sees that it looks like the last one."""
    q, cache = call.q, call.cache
    try:
        if not call.is_ready:
            call = _checked(call, asked)
        if q.shape[1] * q.shape[2] > MIN_FORWARD_ROWS * cache.k.shape[2] and not timed:
            found = _run_as_forward(asked, call)
            if found is not None:
                return found
        scale = asked.softmax_scale
        scale = q.shape[-1] ** -0.5 if scale is None else check_scale(scale)
        known = _known.get(_sizes(asked, call)) or _look_up(asked, call)
        return (_measure if timed else _launch)(known, call, scale)
    except Exception as error:
        check_rows(q, cache)
        explain(**call.named)
        if call.new is not None:
            call.new.check(q)
        if isinstance(error, TypeError | ValueError):  # in the words of a first call
            _checked_config(asked, _checked(call, asked))
        raise


def _run_as_forward(asked: DecodeOptions, call: DecodeCall) -> _Result | None:
    """By kernels of the forward; None: those of decode are for it. With splits given, the caller
    wants bits that the forward does not promise."""
    if asked.config is not None or asked.splits != 0 or call.functions.score != 0:
        return None
    variant = replace(Extras(*call.extras(_numbers(asked, call))).variant, ragged=True)
    if not is_for_forward(call.q, call.cache, variant, call.out):
        return None
    call = _checked(call, asked)
    if call.new is not None:
        lengths = call.cache.seqlens + call.n_new
        call = _appended(_look_up(asked, call), call)
        call = call._replace(cache=call.cache._replace(seqlens=lengths))
    spec = AttentionSpec(
        asked.causal,
        asked.softmax_scale,
        asked.window_size,
        asked.softcap,
        call.alibi_slopes,
        call.sinks,
    )
    return *run_over_cache(call.q, call.cache, spec, call.out, call.with_lse), 0.0


def _checked(call: DecodeCall, asked: DecodeOptions) -> DecodeCall:
    return call._replace(cache=call.cache.checked(call.q, call.new, asked.window_left))


def _sizes(asked: DecodeOptions, call: DecodeCall) -> Hashable:
    """What calls of the same sizes have in common, which most calls find, and which costs less to
    look for than ``_key``: all that this and ``_numbers`` depend on."""
    config, causal, sides, softcap, splits, _ = asked
    q, cache, new, _, _, alibi_slopes, sinks, functions = call
    k, v, _, table, _, leftpad, k_scale, v_scale = cache
    window = sides if sides is NO_WINDOW else checked_window(sides)
    is_dense = k.is_contiguous() and v.is_contiguous()
    of_scales = None if k_scale is None else k_scale.ndim, None if v_scale is None else v_scale.ndim
    return (
        id(config), causal, window,
        # True, 1 and 1.0 are equal, but not all of them are taken.
        softcap, type(softcap), splits, type(splits),
        functions.score, q.shape, k.shape, v.shape, q.dtype, k.dtype, q.device,
        None if table is None else table.shape, leftpad is None,
        None if new is None else new.k.shape[1], alibi_slopes is None, sinks is None, of_scales,
        is_dense, is_dense or cache.is_in_boxes,
    )  # fmt: skip


def _key(asked: DecodeOptions, call: DecodeCall, numbers: Extras) -> Hashable:
    """What calls of one choice have in common: the configuration (by its id), what is computed,
    dtypes and device, sizes of heads and rows, the size class of the batch, and whether bulk copies
    bring what the cache holds."""
    q, cache, new = call.q, call.cache, call.new
    batch, *of_q = q.shape
    scales = (None if t is None else t.ndim for t in (cache.k_scale, cache.v_scale))
    return (
        id(asked.config), asked.splits, *numbers.numbers, q.dtype, q.device, size_class(batch),
        *of_q, cache.k.dtype, cache.k.shape[2], cache.v.shape[-1], *scales, cache.is_in_boxes,
        None if new is None else call.n_new, call.alibi_slopes is None, call.sinks is None,
    )  # fmt: skip


def _look_up(asked: DecodeOptions, call: DecodeCall) -> _Known:
    """The kernel for all calls like this one, found or built when the first one comes."""
    call, sizes = _checked(call, asked), _sizes(asked, call)
    checked_splits(asked.splits)
    numbers = _numbers(asked, call)
    key = _key(asked, call, numbers)
    choice = _choices.get(key)
    if choice is None:
        config, variant = _checked_config(asked, call)
        kernel = _kernel_for(config, variant, call.q.device)
        how = Splitting(asked.splits, call.n_new)
        bound = BoundDecode(kernel, call.q.device, how, appends=call.new is not None)
        choice = _choices.keep(key, _Choice(asked.config, kernel, how, bound))
    in_a_row = asked.turns_in_a_row(call.cache.rows)
    return _known.keep(sizes, _Known(choice, numbers, in_a_row))


def _launch(known: _Known, call: DecodeCall, scale: float) -> _Result:
    """Appends what is new, and launches the kernel."""
    o, lse = _results(call)
    new, cache, bound, extras = call.new, call.cache, known.choice.call, call.extras(known.numbers)
    if new is None:
        bound(call.tensors(o, lse), scale, extras)
        return o, lse, 0.0
    turned = new.turned(call.q)
    append = new.arguments(call.q, turned, cache, known.in_a_row)
    if turned is not None:
        call = call._replace(q=turned)
    bound(call.tensors(o, lse), scale, extras, (*append, *NO_SOFTMAX))
    mark_written(cache.k, cache.v)
    return o, lse, 0.0


def _measure(known: _Known, call: DecodeCall, scale: float) -> _Result:
    """Does as ``_launch``, and measures the kernel."""
    kernel, how, extras = known.choice.kernel, known.choice.how, Extras(*call.extras(known.numbers))
    tensors = call.tensors(*_results(call))
    plan = kernel.plan(tensors, how=how, extras=extras)
    if call.new is not None:
        tensors = tensors._replace(q=_appended(known, call).q)
    workspace, counters = Scratch(plan, call.q.device)()
    milliseconds = kernel(
        tensors, scale, timed=True, how=how, counters=counters, workspace=workspace, extras=extras
    )
    return tensors.o, tensors.lse, milliseconds


def _numbers(asked: DecodeOptions, call: DecodeCall) -> Extras:
    """``Extras`` without tensors."""
    left, right = _window(asked.window_size, asked.causal, call.q.shape[1], call.cache.rows)
    softcap, score = checked_cap(asked.softcap), call.functions.score
    return Extras(softcap=softcap, window_left=left, window_right=right, score=score)


def _appended(known: _Known, call: DecodeCall) -> DecodeCall:
    """With new keys in the cache, and queries that are turned as these are."""
    q, cache, new = call.q, call.cache, call.new
    assert new is not None
    turned = new.turned(q)
    known.choice.kernel.append(new.arguments(q, turned, cache, known.in_a_row))
    mark_written(cache.k, cache.v)
    return call if turned is None else call._replace(q=turned)


def _results(call: DecodeCall) -> tuple[torch.Tensor, torch.Tensor | None]:
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


def _checked_config(asked: DecodeOptions, call: DecodeCall) -> tuple[DecodeKernelConfig, Variant]:
    """The caller's configuration or the chosen one, and the kernel's variant, for a call that is
    refused before one is built for it. Its cache has been checked."""
    config, reason = asked.config, None
    if config is not None:
        check_config("cfg", config, _CONFIGS)
    q, (k, v, *_) = call.q, call.cache
    given = {"q": q, "k_cache": k, "v_cache": v, "out": call.out}
    for name, t in given.items():
        if t is not None:
            check_tensors(**{name: t})
            check_rank(name, t, None)
    checked_splits(asked.splits)
    extras = Extras(*call.extras(_numbers(asked, call)))
    d_head, d_v = q.shape[-1], v.shape[-1]
    of_rows = d_head_of_rows(d_head, d_v)
    if config is None:
        config, reason = _choose(asked, call, extras, of_rows)
    check_before_building(config, q, k, v, suffix="_cache", o=call.out)
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
    return config, variant


def _choose(asked: DecodeOptions, call: DecodeCall, extras: Extras, d_head: int) -> DecodeChoice:
    """With ``splits`` it must not depend on the other requests, so not on how many."""
    q, cache = call.q, call.cache
    gpu, capability = gpu_of(q.device)
    heads_kv = max(cache.k.shape[2], 1)
    multiprocessors = None if gpu is None else count_multiprocessors(gpu)
    batch = size_class(q.shape[0])
    workload = DecodeWorkload(
        dtype_of(q.dtype, q.device),
        d_head,
        rows=q.shape[1] * (q.shape[2] // heads_kv),
        fp8_cache=cache.k.dtype == FP8,
        token_scales=any(t is not None and is_of_tokens(t) for t in (cache.k_scale, cache.v_scale)),
        many_tiles=asked.splits == 0 and has_many_tiles(batch, heads_kv, multiprocessors),
        in_boxes=cache.is_in_boxes and not extras.variant.window,
    )
    return choose_tuned_decode(workload, gpu, capability)


@functools.lru_cache(MAX_CHOICES)
def _kernel_for(config: DecodeKernelConfig, variant: Variant, device: torch.device) -> DecodeKernel:
    reason = why_chosen(config, variant, device) or "named by the caller"
    return find_first(find_decode, KernelId(config, variant), device, reason)


def _window(window_size: Any, causal: bool, n_q: int, rows: int) -> tuple[int, int]:
    """Its sides, without bounds that cut nothing off."""
    left, right = checked_window(window_size)
    right = 0 if causal else right
    return _ALL if left >= rows - 1 else left, _ALL if right >= n_q - 1 else right
