"""The way of every call: what it has in common with others is found once, then it is launched."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from flashsmith.configs import (
    AttentionKernelConfig,
    DecodeKernelConfig,
    ForwardKernelConfig,
    KernelId,
    Variant,
    Workload,
)
from flashsmith.configs.workload import check_row_sizes
from flashsmith.ops.checks import FP8, check_rank, check_scale, check_tensors
from flashsmith.ops.few_queries import FewQueries, few_queries_kernel_for
from flashsmith.ops.first_use import (
    check_before_building,
    check_extras_before_building,
    find_first,
    refuse_of_fp8,
)
from flashsmith.ops.layout import laid_out, takes
from flashsmith.ops.spec import ResolvedSpec
from flashsmith.problem import Problem
from flashsmith.runtime import Kernel, find_kernel
from flashsmith.runtime.plan import Plan
from flashsmith.runtime.workspace import is_kept, workspace_for
from flashsmith.selection.choose import forget_with_calls
from flashsmith.selection.select import dtype_of, select_for, select_fp8, why_chosen
from flashsmith.selection.standby import at_hand


@dataclass(frozen=True)
class _Call:
    """What all calls on tensors of some shapes have in common."""

    config: AttentionKernelConfig | None  # the caller's is kept alive: its id is in the key
    kernel: Kernel | FewQueries | None  # None: there are no keys
    plan: Plan
    scale: float  # where the caller names none
    # What new tensors are made like: of their shapes, of one element in memory.
    o_like: torch.Tensor
    lse_like: torch.Tensor


class _Repeatable(NamedTuple):
    """The last call of its kind, and how to make it again."""

    again: Callable[..., bool]  # the kernel's
    call: _Call
    workspace: torch.Tensor | None
    needs_workspace: bool  # of its own in every call


# A kind: the configuration (by its id; None's: one is selected), what is computed, and whether the
# log-sum-exp is wanted. A key: the kind, the shapes of q and v, the dtype and the device.
_Kind = tuple[int, Hashable, bool]
_Key = tuple[_Kind, torch.Size, torch.Size, torch.dtype, torch.device]
_calls: dict[_Key, _Call] = {}
_last: dict[_Kind, _Repeatable] = {}
_CALLS_REMEMBERED = 4096
_CONTIGUOUS = torch.contiguous_format


def _forget() -> None:
    _calls.clear()
    _last.clear()


forget_with_calls(_forget)


def launch(
    config: AttentionKernelConfig | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None,
    spec: ResolvedSpec,
    *,
    scale: float | None,
    with_lse: bool,
    timed: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """o, lse and milliseconds of one call, whose flags and configuration were checked.

    The hot path. Most calls look like the last of their kind: the library sees whether this one
    does, and makes it again. Others take the way of ``_launch_anew``. Only if something fails,
    thorough checks say what, in the house's words.
    """
    if getattr(q, "dtype", None) == FP8:  # which does not say what the others have
        spec = spec._replace(key=(spec.key, *(getattr(t, "dtype", None) for t in (v, o))))
    kind = (id(config), spec.key, with_lse)
    last = _last.get(kind)
    try:
        if not (  # whatever speaks DLPack would do for a call that is made again
            isinstance(q, torch.Tensor)
            and isinstance(k, torch.Tensor)
            and isinstance(v, torch.Tensor)
            and (o is None or isinstance(o, torch.Tensor))
        ):
            check_tensors(**_named(q, k, v, o))
        if scale is not None:
            scale = check_scale(scale)
        if last is not None and not timed:
            again, call, workspace, needs_workspace = last
            result = _empty(call.o_like) if o is None else o
            lse = _empty(call.lse_like) if with_lse else None
            if needs_workspace:
                workspace = workspace_for(call.plan, q.device)
            factor = call.scale if scale is None else scale
            own = *spec.scales, spec.block_table
            if again(q, k, v, result, lse, *own, workspace, factor, *spec.told_again):
                return result, lse, 0.0
        key = (kind, q.shape, v.shape, q.dtype, q.device)
        known = _calls.get(key) or _first_call(key, config, spec, **_named(q, k, v, o))
        if config is None:
            return _launch_any_layout(kind, known, q, k, v, o, spec, scale=scale, timed=timed)
        return _launch_anew(kind, known, q, k, v, o, spec, scale=scale, timed=timed)
    except Exception:
        check_tensors(**_named(q, k, v, o))  # torch's error of a tensor without memory says less
        raise


def _launch_any_layout(
    kind: _Kind,
    call: _Call,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None,
    spec: ResolvedSpec,
    *,
    scale: float | None,
    timed: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """Copies what the chosen kernel cannot read, and others can, before ``_launch_anew``."""
    config = call.config
    if config is not None and spec.block_table is None:
        ragged = spec.extras.is_ragged or config.operation == "decode"
        q, k, v = laid_out(config, ragged, q, k, v)
        if o is not None and 0 not in o.stride() and not takes(config, o, ragged):
            into, lse, milliseconds = _launch_anew(
                kind, call, q, k, v, o.contiguous(), spec, scale=scale, timed=timed
            )
            return o.copy_(into), lse, milliseconds
    return _launch_anew(kind, call, q, k, v, o, spec, scale=scale, timed=timed)


def _launch_anew(
    kind: _Kind,
    call: _Call,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None,
    spec: ResolvedSpec,
    *,
    scale: float | None,
    timed: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """As ``launch``, for a call that looks unlike the last of its kind; remembers it."""
    *_, with_lse = kind
    scale = call.scale if scale is None else scale
    some_unused = spec.extras.seqused_q is not None  # rows of what is made here: zero, and -inf
    if o is None:
        o = _empty(call.o_like).zero_() if some_unused else _empty(call.o_like)
    lse = _empty(call.lse_like) if with_lse else None
    if lse is not None and some_unused:
        lse.fill_(-math.inf)
    if call.kernel is None:
        return _without_keys(k, v, o, lse, spec, call.o_like)
    workspace = workspace_for(call.plan, q.device)
    if timed:
        milliseconds = call.kernel(
            q, k, v, o, scale, timed,
            lse=lse, workspace=workspace, scales=spec.scales, block_table=spec.block_table,
            extras=spec.extras,
        )  # fmt: skip
        return o, lse, milliseconds
    again = call.kernel.repeatable(
        q, k, v, o, lse, workspace, scale, spec.extras, spec.scales, spec.block_table
    )
    if not some_unused:
        needs_workspace = workspace is not None and not is_kept(call.plan, q.device)
        workspace = None if needs_workspace else workspace
        if len(_last) >= _CALLS_REMEMBERED:
            _last.clear()
        _last[kind] = _Repeatable(again, call, workspace, needs_workspace)
    return o, lse, 0.0


def _first_call(
    key: _Key, config: AttentionKernelConfig | None, spec: ResolvedSpec, **tensors: torch.Tensor
) -> _Call:
    """What later calls of this key have in common, found out once."""
    check_tensors(**tensors)
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    for name, tensor in tensors.items():
        check_rank(name, tensor, None)
    d_head, d_v = q.shape[-1], v.shape[-1]
    check_row_sizes(d_head, d_v)
    if q.dtype == FP8:
        refuse_of_fp8(spec.variant)
        config = config or select_fp8(q, v, tensors.get("o"), spec.variant)
    chosen = config or select_for(_workload(q, k, d_v, spec), q.device, spec.is_cache)
    check_before_building(chosen, q, k, v, o=tensors.get("o"))
    check_extras_before_building(spec.extras, q, k)
    kernel: Kernel | FewQueries | None = None
    plan = Plan((), 0, 0)
    o_like, lse_like = _like(q, d_v, chosen.dtype.to_torch_dtype()), _like_lse(q)
    if v.shape[1] > 0:
        variant = _variant(chosen, spec)
        if {d_head, d_v} != {chosen.d_head}:
            variant = replace(variant, padded=True)
        if config is None and variant.ragged == spec.variant.ragged:
            chosen = at_hand(chosen, variant, q.device)
        if isinstance(chosen, DecodeKernelConfig):
            kernel = few_queries_kernel_for(chosen, variant, q.device)
        else:
            kernel = kernel_for(chosen, variant, q.device)
        o = tensors.get("o", o_like)
        plan = kernel.plan(q, k, v, o, block_table=spec.block_table, extras=spec.extras)
    call = _Call(config or chosen, kernel, plan, d_head**-0.5, o_like, lse_like)
    if kernel is None:  # no kernel would check the tensors of a later call
        return call
    if len(_calls) >= _CALLS_REMEMBERED:
        _calls.clear()
    return _calls.setdefault(key, call)


def _variant(chosen: AttentionKernelConfig, spec: ResolvedSpec) -> Variant:
    """Of the kernel for a call. Raises ValueError: decode's do not compute it."""
    variant = spec.variant
    if not isinstance(chosen, DecodeKernelConfig):
        return variant
    variant = replace(variant, ragged=False)  # lengths are arguments of every call
    if spec.is_cache and chosen.serves_variant(variant) and not chosen.fp8_cache:
        return variant
    raise ValueError(
        f"config is {chosen}; kernels of decode take 16-bit keys, seqused_k as lengths, and no "
        "top_left, bias or dropout: pass a configuration of forward, or None"
    )


def _workload(q: torch.Tensor, k: torch.Tensor, d_v: int, spec: ResolvedSpec) -> Workload:
    """What a configuration is selected for."""
    q_shape, k_shape = q.shape, k.shape
    if spec.batch is not None and spec.max_seqlen_k is not None:
        q_shape = torch.Size((spec.batch, spec.extras.max_seqlen_q, *q.shape[2:]))
        k_shape = torch.Size((spec.batch, spec.max_seqlen_k, *k.shape[2:]))
    problem = Problem.of_shapes(dtype_of(q.dtype, q.device), q_shape, k_shape, d_v)
    return Workload(problem, spec.variant)


def _named(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    return {"q": q, "k": k, "v": v} | ({} if o is None else {"o": o})


def _like(q: torch.Tensor, d_v: int, dtype: torch.dtype) -> torch.Tensor:
    return q.new_empty(1, dtype=dtype).expand(*q.shape[:-1], d_v)


def _like_lse(q: torch.Tensor) -> torch.Tensor:
    batch, seq_len, n_heads, _ = q.shape
    return q.new_empty(1, dtype=torch.float32).expand(batch, n_heads, seq_len)


def _empty(like: torch.Tensor) -> torch.Tensor:
    """Faster than by the sizes, which torch would convert."""
    return torch.empty_like(like, memory_format=_CONTIGUOUS)


def _without_keys(
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor | None,
    spec: ResolvedSpec,
    like: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """The result where no query sees anything but a sink, which rows of no sequence do not see.

    like: A new o would have its shape.
    """
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(
            f"v has shape {tuple(v.shape)}, but k has {tuple(k.shape)}; they need the same batch "
            "size, seq_len_k and n_heads_kv"
        )
    if o.shape != like.shape:
        raise ValueError(
            f"o has shape {tuple(o.shape)}, but q and v make a result of {tuple(like.shape)}"
        )
    o.zero_()
    if lse is not None:
        lse.fill_(-math.inf)
        if spec.extras.sinks is not None:
            of_sinks = spec.extras.sinks[None, :, None]
            lse.copy_(of_sinks.where(_used_rows(spec, o), lse))
    return o, lse, 0.0


def _used_rows(spec: ResolvedSpec, o: torch.Tensor) -> torch.Tensor:
    """Whether each row of o belongs to a sequence: (batch or 1, 1, rows)."""
    offsets, used = spec.extras.cu_seqlens_q, spec.extras.seqused_q
    rows = torch.arange(o.shape[1], dtype=torch.int32, device=o.device)
    if offsets is None:
        ends = rows.new_full((1,), o.shape[1]) if used is None else used
        return (rows < ends[:, None])[:, None]
    if len(offsets) < 2:  # there are no sequences
        return (rows < 0)[None, None]
    sequence = torch.searchsorted(offsets[1:], rows, right=True).clamp_(max=len(offsets) - 2)
    ends = offsets[1:] if used is None else offsets[:-1] + used
    is_used: torch.Tensor = (rows >= offsets[sequence]) & (rows < ends[sequence])
    return is_used[None, None]


# A call costs microseconds; finding a kernel again would cost tens.
_kernels: dict[tuple[ForwardKernelConfig, Variant, torch.device], Kernel] = {}


def kernel_for(cfg: ForwardKernelConfig, variant: Variant, device: torch.device) -> Kernel:
    """The kernel that ``forward`` launches, found or built when it is first asked for."""
    kernel = _kernels.get((cfg, variant, device))
    if kernel is None:
        reason = why_chosen(cfg, variant, device) or "named by the caller"
        kernel = find_first(find_kernel, KernelId(cfg, variant), device, reason)
        kernel = _kernels.setdefault((cfg, variant, device), kernel)
    return kernel
