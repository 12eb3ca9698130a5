"""``backward``, which launches the kernels of a configuration, and the gradients of
``attention``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, NamedTuple

import torch

from flashsmith.configs import BackwardKernelConfig, KernelId, Variant
from flashsmith.configs.registry import BACKWARD
from flashsmith.configs.workload import BackwardWorkload
from flashsmith.ops.checks import (
    check_config,
    check_flags,
    check_rank,
    check_scale,
    check_tensors,
    mark_written,
)
from flashsmith.ops.choices import MAX_CHOICES, Choices
from flashsmith.ops.first_use import (
    check_before_building,
    check_extras_before_building,
    find_first,
)
from flashsmith.ops.gate import CAPTURED, are_memory, flat, refuse_all_but_memory
from flashsmith.ops.gradients import (
    NOTHING_ELSE,
    GradientMask,
    Gradients,
    gradients_of,
    with_outputs,
    write_without_keys,
)
from flashsmith.ops.layout import laid_out, with_aligned_rows, with_dense_rows
from flashsmith.ops.spec import (
    CAUSAL,
    FULL,
    AttentionSpec,
    ResolvedSpec,
    ready,
    resolve,
    spec_of,
    tensors_of,
    with_tensors,
)
from flashsmith.problem import size_class
from flashsmith.runtime import BackwardKernel, GradientTensors, find_backward
from flashsmith.runtime.call_args import CallArgs
from flashsmith.runtime.launch_cache import MADE, launch_cache
from flashsmith.selection.choose import choose_for
from flashsmith.selection.select import dtype_of, gpu_of, remember_reason

_CONFIGS = tuple(family.config for family in BACKWARD.families)
_ALIKE = 0.95  # share of the longest length that alike lengths have in the mean
_OF_KEYS = ("k", "v", "dk", "dv")  # the tensors whose rows are keys
_NO_MEMORY = (False, 0, None, None)  # by_split_kv, stream, workspace, counters of `Making`
_CHECKED = ("do", "q", "k", "v", "o", "lse")


def backward(
    cfg: BackwardKernelConfig | None,
    do: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    dlse: torch.Tensor | None = None,
    deterministic: bool = False,
    benchmark: bool = False,
    **semantics: Any,
) -> Gradients | tuple[Gradients, float]:
    """Returns the gradients of ``attention`` by its tensors, with the kernels of ``cfg``.

    The algorithm is FlashAttention-2, section 3.1, algorithm 2. CUDA tensors run on their GPU's
    current stream, CPU tensors on the emulator. Kernels that no library holds are built first.

    Args:
        cfg: The backward's configuration; None: it is chosen.
        do: (batch, seq_len_q, n_heads, d_v), the gradient of the loss by o, of q's dtype and
            device. It is copied if kernels do not support its layout.
        q, k, v, causal, softmax_scale: The arguments of ``attention``.
        o: The result of ``attention``, or the combined result of several calls over parts of the
            keys.
        lse: (batch, n_heads, seq_len_q), float32, contiguous, the log-sum-exp of o.
        dlse: (batch, n_heads, seq_len_q), float32, the gradient of the loss by lse; None: 0.
        deterministic: Whether gradients have the same bits in every run, if ``cfg`` is None.
        benchmark: Whether to also return the milliseconds between two events around the launches.
        semantics: Further keywords of ``attention``. If sinks or bias are given, their gradients
            are computed.

    Returns:
        The gradients; with ``benchmark`` also milliseconds.

    Raises: See ``forward``.
    """
    check_flags(causal=causal, deterministic=deterministic, benchmark=benchmark)
    if cfg is not None:
        check_config("cfg", cfg, _CONFIGS)
    keywords = {"causal": causal, "softmax_scale": softmax_scale, **semantics}
    spec = spec_of(q, k, keywords)
    given = tensors_of(spec) | {"do": do, "q": q, "k": k, "v": v, "o": o, "lse": lse}
    if dlse is not None:
        given["dlse"] = dlse
    if not are_memory(*flat(given)):
        refuse_all_but_memory(**given)
    wanted = GradientMask(spec.sinks is not None, spec.bias is not None)
    tensors = GradientTensors(q, k, v, o, lse, do, dlse=dlse)
    gradients, milliseconds = run_backward(
        tensors, spec, wanted, config=cfg, deterministic=deterministic, timed=benchmark
    )
    return (gradients, milliseconds) if benchmark else gradients


def run_backward(
    tensors: GradientTensors,
    spec: AttentionSpec,
    wanted: GradientMask = NOTHING_ELSE,
    *,
    config: BackwardKernelConfig | None = None,
    deterministic: bool = False,
    timed: bool = False,
) -> tuple[Gradients, float]:
    """Computes ``backward``; packed rows have three dimensions here.

    tensors: The tensors; do None: 0. A new tensor replaces a dq, dk or dv of None.
    """
    q, k, into = tensors.q, tensors.k, (tensors.dq, tensors.dk, tensors.dv)
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    how = _How(config, deterministic, timed, are_new=into[0] is into[1] is into[2] is None)
    try:
        complete, milliseconds = with_outputs(tensors, spec, wanted), 0.0
        if timed or not _is_made_as_before(complete, spec, how):
            milliseconds = _launch(complete, spec, how)
        if not how.are_new:
            mark_written(*into)
        return gradients_of(complete, spec), milliseconds
    except Exception:
        _check(tensors, spec)
        resolve(spec, q, k)
        raise


def _is_made_as_before(tensors: GradientTensors, spec: AttentionSpec, how: _How) -> bool:
    """Tries the hot path: returns whether ``launch_cache`` made the call, as an earlier one like
    it."""
    config, deterministic, _, are_new = how
    try:
        told: tuple[Any, ...] = spec[:2]  # the rest of a plain call is known
        if spec is not FULL and spec is not CAUSAL:
            told = ready(spec, tensors.q, tensors.k)
        named = 0 if config is None else id(config)
        return launch_cache.backward(named, deterministic, are_new, *tensors, *told) == MADE
    except Exception:
        return False  # the cold path refuses it with a better message


def _check(tensors: GradientTensors, spec: AttentionSpec) -> None:
    """Raises for a tensor of a failed call if no call supports it."""
    check_tensors(**{n: t for n, t in tensors.given.items() if n in _CHECKED}, **tensors_of(spec))
    for name, t in tensors.given.items():
        if name not in ("lse", "dlse"):
            offsets = "cu_seqlens_k" if name in _OF_KEYS else "cu_seqlens_q"
            check_rank(name, t, offsets if getattr(spec, offsets) is not None else None)


def backward_of_saved(
    tensors: GradientTensors, spec: AttentionSpec, wanted: GradientMask, deterministic: bool
) -> Gradients:
    """Computes ``run_backward`` of tensors that autograd saved, to which its hooks may have given
    other strides."""
    try:
        return run_backward(tensors, spec, wanted, deterministic=deterministic)[0]
    except ValueError:
        q, k, v, o = map(with_aligned_rows, tensors[:4])
        dense = {
            name: with_dense_rows(t) if name == "bias" else t.contiguous()
            for name, t in tensors_of(spec).items()
            if name != CAPTURED
        }
        copied = tensors._replace(q=q, k=k, v=v, o=o, lse=tensors.lse.contiguous())
        copied_spec = with_tensors(spec, dense)
        if all(map(is_, (*copied, *copied_spec), (*tensors, *spec))):
            raise
        return run_backward(copied, copied_spec, wanted, deterministic=deterministic)[0]


class _How(NamedTuple):
    """The configuration of a call, whether it is timed, and whether dq, dk and dv are new: the
    library clears rows outside all sequences only in new tensors."""

    config: BackwardKernelConfig | None
    deterministic: bool
    timed: bool
    are_new: bool


@dataclass(slots=True, eq=False)
class _Choice:
    """The kernels of all calls with one key.

    config: The caller's configuration, kept alive because its id is in the key; None: one was
        chosen.
    call: The kernels' ``bind()``.
    lays_out: Whether some call had tensors with a layout that the kernels cannot read.
    """

    config: BackwardKernelConfig | None
    kernel: BackwardKernel
    call: Callable[..., None]
    lays_out: bool = False


_choices: Choices[_Choice] = Choices()


def _launch(tensors: GradientTensors, given: AttentionSpec, how: _How) -> float:
    """Writes the gradients, and returns milliseconds if the call is timed. Kernels are chosen once
    for all calls with one key; the library checks and plans each call. ``launch_cache`` remembers
    the call, and makes the next one of its kind."""
    q, k, v = tensors.q, tensors.k, tensors.v
    spec = resolve(given, q, k)
    scale = given.softmax_scale
    scale = q.shape[-1] ** -0.5 if scale is None else check_scale(scale)
    if k.shape[-3] == 0:
        _checked_config(how, tensors, spec)
        write_without_keys(tensors)
        return 0.0
    heads, d_head = q.shape[-2:]
    heads_kv, d_v = v.shape[-2:]
    batch, n_q, n_k = sizes = spec.sizes(q, v)
    key = (
        id(how.config), how.deterministic, spec.key, q.dtype, q.device, heads, heads_kv, d_head,
        d_v, size_class(batch), size_class(n_q), size_class(n_k),
        _are_unlike(q, v, spec.extras, sizes),
    )  # fmt: skip
    choice = _choices.get(key) or _choose(key, how, tensors, spec)
    try:
        if how.timed:
            return choice.kernel(
                tensors, scale, timed=True, are_new=how.are_new, extras=spec.extras
            )
        _call(choice, tensors, spec, scale, how.are_new)
    except Exception:  # raises the same error as the first call of its kind
        _checked_config(how, tensors, spec)
        raise
    if not choice.lays_out:
        named = 0 if how.config is None else id(how.config)
        told = named, how.deterministic, how.are_new, *tensors, *given
        launch_cache.remember_backward(choice.call, how.config, *_NO_MEMORY, *told)
    return 0.0


def _are_unlike(
    q: torch.Tensor, v: torch.Tensor, extras: CallArgs, sizes: tuple[int, int, int]
) -> bool:
    """Returns whether sequences have unlike lengths, as far as the host knows; ``sizes`` are those
    of ``ResolvedSpec``."""
    batch, n_q, n_k = sizes
    return (
        extras.seqused_q is not None
        or extras.seqused_k is not None
        or (extras.cu_seqlens_q is not None and q.shape[0] < _ALIKE * batch * n_q)
        or (extras.cu_seqlens_k is not None and v.shape[0] < _ALIKE * batch * n_k)
    )


def _call(
    choice: _Choice, tensors: GradientTensors, spec: ResolvedSpec, scale: float, are_new: bool
) -> None:
    read = _laid_out(choice, tensors, spec) if choice.lays_out else tensors
    try:
        choice.call(are_new, *read, None, scale, *spec.extras)
    except ValueError:
        read = _laid_out(choice, tensors, spec)
        if choice.lays_out or choice.config is not None or all(map(is_, read, tensors)):
            raise
        choice.lays_out = True
        choice.call(are_new, *read, None, scale, *spec.extras)


def _laid_out(choice: _Choice, tensors: GradientTensors, spec: ResolvedSpec) -> GradientTensors:
    """Returns the tensors, with copies of those whose layout the chosen kernels cannot read."""
    read = (tensors.q, tensors.k, tensors.v, tensors.o, tensors.do)
    q, k, v, o, do = laid_out(choice.kernel.instance.config, spec.extras.is_varlen, *read)
    return tensors._replace(q=q, k=k, v=v, o=o, do=do)


def _choose(
    key: Hashable,
    how: _How,
    tensors: GradientTensors,
    spec: ResolvedSpec,
) -> _Choice:
    """Returns the kernels for all calls of a key; the first call finds or builds them."""
    config, variant = _checked_config(how, tensors, spec)
    kernel = _kernel_for(config, variant, tensors.q.device)
    return _choices.keep(key, _Choice(how.config, kernel, kernel.bind()))


def _checked_config(
    how: _How, tensors: GradientTensors, spec: ResolvedSpec
) -> tuple[BackwardKernelConfig, Variant]:
    """Returns the caller's or the chosen configuration, and its kernels' variant; refuses an
    invalid call before kernels are built for it."""
    rows = {}  # packed rows become one entry of a batch
    for name in ("q", "k", "v", "o", "do"):
        t = getattr(tensors, name)
        offsets = spec.extras.cu_seqlens_k if name in _OF_KEYS else spec.extras.cu_seqlens_q
        rows[name] = t if offsets is None else t[None]
        check_rank(name, rows[name], None)
    q, k, v = rows["q"], rows["k"], rows["v"]
    lse = tensors.lse if spec.extras.cu_seqlens_q is None else tensors.lse[None]
    variant, config, reason = spec.extras.variant, how.config, None
    if config is None:
        problem = spec.problem(dtype_of(q.dtype, q.device), q, k, v.shape[-1])
        sizes = spec.sizes(tensors.q, tensors.v)
        unlike = _are_unlike(tensors.q, tensors.v, spec.extras, sizes)
        workload = BackwardWorkload(problem, variant, how.deterministic, unlike).representative
        chosen = choose_for(BACKWARD, workload, *gpu_of(q.device))
        config, reason = chosen.config, chosen.reason
    if {q.shape[-1], v.shape[-1]} != {config.d_head}:
        variant = replace(variant, padded=True)
    check_before_building(config, **rows)
    check_extras_before_building(spec.extras, q, k, lse)
    if reason is not None:
        remember_reason(config, variant, q.device, reason)
    return config, variant


@functools.lru_cache(MAX_CHOICES)
def _kernel_for(
    config: BackwardKernelConfig, variant: Variant, device: torch.device
) -> BackwardKernel:
    return find_first(find_backward, KernelId(config, variant), device)
