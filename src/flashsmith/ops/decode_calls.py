"""Finds the kernel of a ``decode``, once for all calls with one key, and launches it."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch

from flashsmith.configs import DecodeKernelConfig, KernelId, Variant
from flashsmith.configs.decode import work_tiles
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import DecodeWorkload, d_head_of_rows
from flashsmith.gpus import count_sms
from flashsmith.ops.bound_decode import BoundDecode
from flashsmith.ops.checks import (
    ALL_KEYS,
    FP8,
    check_config,
    check_rank,
    check_scale,
    check_tensors,
    checked_cap,
    checked_window,
    mark_written,
    needs_gradient,
)
from flashsmith.ops.choices import MAX_CHOICES, Choices
from flashsmith.ops.decode_call import DecodeCall, DecodeOptions
from flashsmith.ops.decode_checks import check_rows, checked_splits
from flashsmith.ops.dispatch import MIN_FORWARD_ROWS, is_for_forward
from flashsmith.ops.first_use import check_before_building, find_first
from flashsmith.ops.forward_over_cache import run_over_cache
from flashsmith.ops.gate import are_memory, explain
from flashsmith.ops.kv_cache import KVAppend, KVCache
from flashsmith.ops.lengths import asked_to_look, is_of_tokens
from flashsmith.ops.results import new_lse, new_o
from flashsmith.ops.spec import AttentionSpec
from flashsmith.problem import size_class
from flashsmith.runtime import CallArgs, DecodeKernel, Splitting, find_decode
from flashsmith.runtime.decoding import NO_SOFTMAX
from flashsmith.runtime.launch_cache import MADE, launch_cache
from flashsmith.runtime.workspace import Scratch
from flashsmith.selection.choice import Choice
from flashsmith.selection.choose import choose_for
from flashsmith.selection.select import dtype_of, gpu_of, remember_reason

_CONFIGS = tuple(family.config for family in DECODE.families)


_Result = tuple[torch.Tensor, torch.Tensor | None, float]


@dataclass(frozen=True, slots=True, eq=False)
class _Choice:
    """The kernel of all calls with one key. config: The caller's configuration, kept alive because
    its id is in the key."""

    config: DecodeKernelConfig | None
    kernel: DecodeKernel
    how: Splitting
    call: BoundDecode


_choices: Choices[_Choice] = Choices()


def run(asked: DecodeOptions, call: DecodeCall, timed: bool = False) -> _Result:
    """Returns o, lse and milliseconds, if the call is timed; no tensor may require a gradient. This
    is a call's cold path, which explains errors."""
    q, cache = call.q, call.cache
    try:
        if not call.is_ready:
            call = _checked(call, asked)
        found = (
            None if timed else _run_as_forward(asked, call) or _made_as_before(*call.told(asked))
        )
        if found is None:
            found = (_measure if timed else _launch)(asked, call)
    except Exception as error:
        check_rows(q, cache)
        explain(**call.named)
        if call.new is not None:
            call.new.check(q)
        if isinstance(error, TypeError | ValueError):  # raises the message of a first call
            _checked_config(asked, _checked(call, asked))
        raise
    if call.out is not None:
        mark_written(call.out)
    return found


def run_as_before(
    config: DecodeKernelConfig | None,
    q: torch.Tensor,
    out: torch.Tensor | None,
    with_lse: bool,
    cache: tuple[Any, ...],
    options: tuple[Any, ...],
    others: tuple[Any, ...],
    new: tuple[Any, ...] = (),
) -> _Result | None:
    """Tries the hot path. Arguments are plain tuples, because a named tuple costs more than the
    look-up.

    Args:
        cache, new: The fields of ``KVCache``, and of ``KVAppend`` if there are new keys.
        options: The fields of ``DecodeOptions`` without the configuration.
        others: alibi_slopes, sinks, the hash of functions, and the tensors that these read or None.

    Returns:
        The result of ``run``. None: no call like this one was made before, its tensors have no
        memory that may be read, or the call is refused.
    """
    given = [t for t in (*cache, out, others[0], others[1], *new[:4]) if t is not None]
    if not are_memory(q, *given) or needs_gradient(q, *given):
        return None
    try:
        k = cache[0]
        if k.is_cpu or asked_to_look():
            asked = DecodeOptions(config, *options)
            cache = KVCache(*cache).checked(q, KVAppend(*new) if new else None, asked.window_left)
        _, n_q, heads, _ = q.shape
        if n_q * heads > MIN_FORWARD_ROWS * k.shape[2]:
            return None
        found = _made_as_before(config, q, out, with_lse, cache, options, others, new)
    except Exception:
        return None  # the cold path refuses it with a better message
    if found is not None and out is not None:
        mark_written(out)
    return found


def _made_as_before(*told: Any) -> _Result | None:
    """Makes the call by ``launch_cache``, or returns None; see ``run_as_before``. The tensors are
    memory, and their lengths were checked if the host may read them."""
    try:
        o, lse, _, arguments = _told(*told)
        if launch_cache.decode(*arguments) != MADE:
            return None
    except Exception:
        return None
    *_, cache, _, _, new = told
    if new:
        mark_written(cache[0], cache[1])
    return o, lse, 0.0


def _told(
    config: DecodeKernelConfig | None,
    q: torch.Tensor,
    out: torch.Tensor | None,
    with_lse: bool,
    cache: tuple[Any, ...],
    options: tuple[Any, ...],
    others: tuple[Any, ...],
    new: tuple[Any, ...],
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, tuple[Any, ...]]:
    """Returns o, lse, the tensor for rotated queries or None, and the arguments of
    ``launch_cache``."""
    o = new_o(q, cache[1].shape[-1], q.dtype) if out is None else out
    lse = new_lse(q) if with_lse else None
    named = 0 if config is None else id(config)
    arguments = (named, q, o, lse, *cache, *options, *others)
    if not new:
        return o, lse, None, arguments
    is_turned = new[2] is not None  # by rotary_cos
    turned = torch.empty_like(q, memory_format=torch.contiguous_format) if is_turned else None
    return o, lse, turned, (*arguments, *new, turned)


def _run_as_forward(asked: DecodeOptions, call: DecodeCall) -> _Result | None:
    """Runs a call by the forward's kernels; None: decode's kernels should run it. With ``splits``
    the caller requires bits that the forward does not promise."""
    q, k = call.q, call.cache.k
    if q.shape[1] * q.shape[2] <= MIN_FORWARD_ROWS * k.shape[2]:
        return None
    if asked.config is not None or asked.splits != 0 or call.functions.score != 0:
        return None
    variant = replace(_extras(asked, call).variant, varlen=True)
    if not is_for_forward(call.q, call.cache, variant, call.out):
        return None
    call = _checked(call, asked)
    if call.new is not None:
        lengths = call.cache.seqlens + call.n_new
        call = _appended(asked, call, _choice_for(asked, call, _extras(asked, call)).kernel)
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


def _key(asked: DecodeOptions, call: DecodeCall, extras: CallArgs) -> Hashable:
    """Returns the key of a call's choice: the configuration (by its id), the variant, dtypes and
    device, sizes of heads and rows, the size class of the batch, and whether bulk copies can load
    the cache."""
    q, cache, new = call.q, call.cache, call.new
    batch, *of_q = q.shape
    scales = (None if t is None else t.ndim for t in (cache.k_scale, cache.v_scale))
    return (
        id(asked.config), asked.splits, extras.variant, q.dtype, q.device, size_class(batch),
        *of_q, cache.k.dtype, cache.k.shape[2], cache.v.shape[-1], *scales, cache.is_in_boxes,
        None if new is None else call.n_new,
    )  # fmt: skip


def _choice_for(asked: DecodeOptions, call: DecodeCall, extras: CallArgs) -> _Choice:
    """Returns the kernel for all calls like this one; the first call finds or builds it."""
    call = _checked(call, asked)
    checked_splits(asked.splits)
    key = _key(asked, call, extras)
    choice = _choices.get(key)
    if choice is None:
        config, variant = _checked_config(asked, call)
        kernel = _kernel_for(config, variant, call.q.device)
        how = Splitting(asked.splits, call.n_new)
        bound = BoundDecode(kernel, call.q.device, how, appends=call.new is not None)
        choice = _choices.keep(key, _Choice(asked.config, kernel, how, bound))
    return choice


def _launch(asked: DecodeOptions, call: DecodeCall) -> _Result:
    """Appends new keys, launches the kernel, and has ``launch_cache`` remember the call."""
    extras, scale = _extras(asked, call), _scale(asked, call)
    bound = _choice_for(asked, call, extras).call
    new, cache = call.new, call.cache
    o, lse, turned, told = _told(*call.told(asked))
    tensors = call.tensors(o, lse)
    if new is None:
        bound(tensors, scale, extras)
    else:
        append = new.arguments(call.q, turned, cache, asked.turns_in_a_row(cache.rows))
        if turned is not None:
            tensors = tensors._replace(q=turned)
        bound(tensors, scale, extras, (*append, *NO_SOFTMAX))
        mark_written(cache.k, cache.v)
    launch_cache.remember_decode(bound.call, asked.config, True, *bound.kept(), *told)
    return o, lse, 0.0


def _measure(asked: DecodeOptions, call: DecodeCall) -> _Result:
    """Makes the call as ``_launch`` does, and measures the kernel."""
    extras, scale = _extras(asked, call), _scale(asked, call)
    choice, (o, lse, *_) = _choice_for(asked, call, extras), _told(*call.told(asked))
    kernel, how, tensors = choice.kernel, choice.how, call.tensors(o, lse)
    plan = kernel.plan(tensors, how=how, extras=extras)
    if call.new is not None:
        tensors = tensors._replace(q=_appended(asked, call, kernel).q)
    workspace, counters = Scratch(plan, call.q.device)()
    milliseconds = kernel(
        tensors, scale, timed=True, how=how, counters=counters, workspace=workspace, extras=extras
    )
    return o, lse, milliseconds


def _scale(asked: DecodeOptions, call: DecodeCall) -> float:
    scale = asked.softmax_scale
    return call.q.shape[-1] ** -0.5 if scale is None else check_scale(scale)


def _extras(asked: DecodeOptions, call: DecodeCall) -> CallArgs:
    """Returns the kernel's arguments beside the call's tensors."""
    left, right = _window(asked.window_size, asked.causal, call.q.shape[1], call.cache.rows)
    functions = call.functions
    return CallArgs(
        call.alibi_slopes, sinks=call.sinks, seqused_k=call.cache.seqlens,
        mod_tensors=functions.mod_tensors, softcap=checked_cap(asked.softcap),
        window_left=left, window_right=right, score=functions.score,
    )  # fmt: skip


def _appended(asked: DecodeOptions, call: DecodeCall, kernel: DecodeKernel) -> DecodeCall:
    """Appends new keys to the cache; returns the call with rotated queries."""
    q, cache, new = call.q, call.cache, call.new
    assert new is not None
    turned = new.turned(q)
    kernel.append(new.arguments(q, turned, cache, asked.turns_in_a_row(cache.rows)))
    mark_written(cache.k, cache.v)
    return call if turned is None else call._replace(q=turned)


def _checked_config(asked: DecodeOptions, call: DecodeCall) -> tuple[DecodeKernelConfig, Variant]:
    """Returns the caller's or the chosen configuration, and the kernel's variant; refuses an
    invalid call before a kernel is built for it. Its cache has been checked."""
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
    extras = _extras(asked, call)
    d_head, d_v = q.shape[-1], v.shape[-1]
    of_rows = d_head_of_rows(d_head, d_v)
    if config is None:
        chosen = _choose(asked, call, extras, of_rows)
        config, reason = chosen.config, chosen.reason
    check_before_building(config, q, k, v, suffix="_cache", o=call.out)
    call.check()
    # Lengths are arguments of every call, so the variant does not have them.
    is_padded = {d_head, d_v} != {config.d_head}
    variant = replace(extras.variant, varlen=False, padded=is_padded)
    if not config.serves_variant(variant):
        raise ValueError(
            f"cfg is {config}, which has no kernels for {variant.name}; pass None, or a "
            "configuration of the sm80 family"
        )
    if reason is not None:
        remember_reason(config, variant, q.device, reason)
    return config, variant


def _choose(
    asked: DecodeOptions, call: DecodeCall, extras: CallArgs, d_head: int
) -> Choice[DecodeWorkload, DecodeKernelConfig]:
    """Returns the configuration and its source. With ``splits`` it must not depend on other
    requests, so not on their number either."""
    q, cache = call.q, call.cache
    gpu, capability = gpu_of(q.device)
    heads_kv = max(cache.k.shape[2], 1)
    num_sms = None if gpu is None or asked.splits > 0 else count_sms(gpu)
    batch = size_class(q.shape[0])
    is_fp8, scales = cache.k.dtype == FP8, (cache.k_scale, cache.v_scale)
    workload = DecodeWorkload(
        dtype_of(q.dtype, q.device),
        d_head,
        rows=q.shape[1] * (q.shape[2] // heads_kv),
        fp8_cache=is_fp8,
        per_token_scale=is_fp8 and any(t is not None and is_of_tokens(t) for t in scales),
        tiles=work_tiles(batch, heads_kv, num_sms),
        in_boxes=cache.is_in_boxes and not extras.variant.window,
    )
    return choose_for(DECODE, workload, gpu, capability)


@functools.lru_cache(MAX_CHOICES)
def _kernel_for(config: DecodeKernelConfig, variant: Variant, device: torch.device) -> DecodeKernel:
    return find_first(find_decode, KernelId(config, variant), device)


def _window(window_size: Any, causal: bool, n_q: int, rows: int) -> tuple[int, int]:
    """Returns the sides of the window, without bounds that hide no key."""
    left, right = checked_window(window_size)
    right = 0 if causal else right
    return ALL_KEYS if left >= rows - 1 else left, ALL_KEYS if right >= n_q - 1 else right
