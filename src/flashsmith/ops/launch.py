"""The way of every call: what it has in common with others is found once, then it is launched."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch

from flashsmith.configs import DType, ForwardKernelConfig, KernelId, Variant, Workload
from flashsmith.configs.workload import check_row_sizes
from flashsmith.ops.checks import check_rank, check_scale, check_tensors
from flashsmith.ops.first_use import check_before_building, log_kernel, refuse_transforms
from flashsmith.ops.semantics import Spec
from flashsmith.problem import Problem
from flashsmith.runtime import Kernel, find_kernel
from flashsmith.runtime.device import target_of
from flashsmith.runtime.plan import Plan
from flashsmith.runtime.progress import announce_build
from flashsmith.runtime.workspace import workspace_for
from flashsmith.selection.choose import forget_with_tables, select_for, why_chosen
from flashsmith.selection.standby import at_hand


@dataclass(frozen=True)
class _Call:
    """What all calls on tensors of some shapes have in common."""

    config: ForwardKernelConfig | None  # the caller's is kept alive: its id is in the key
    kernel: Kernel | None  # None: there are no keys
    plan: Plan
    scale: float  # where the caller names none
    o_is_like_q: bool


# The key says the configuration (by its id; None: one is selected), what is computed, whether the
# log-sum-exp is wanted, the shapes of q and v, the dtype and the device.
_Key = tuple[int | None, Hashable, bool, torch.Size, torch.Size, torch.dtype, torch.device]
_calls: dict[_Key, _Call] = {}
_CALLS_REMEMBERED = 4096
forget_with_tables(_calls.clear)


def launch(
    config: ForwardKernelConfig | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None,
    spec: Spec,
    *,
    scale: float | None,
    with_lse: bool,
    timed: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """o, lse and milliseconds of one call, whose flags and configuration were checked.

    The hot path. It asks the tensors what the library cannot see, and what tells calls apart; the
    library sees the rest. Only if something fails, thorough checks say what, in the house's words.
    """
    try:
        known = None if config is None else id(config)
        key = (known, spec.key, with_lse, q.shape, v.shape, q.dtype, q.device)
        if (
            q.requires_grad
            or k.requires_grad
            or v.requires_grad
            or (o is not None and o.requires_grad)
        ):
            check_tensors(**_named(q, k, v, o))
        call = _calls.get(key) or _first_call(key, config, spec, **_named(q, k, v, o))
    except AttributeError:
        check_tensors(**_named(q, k, v, o))
        raise
    scale = call.scale if scale is None else check_scale(scale)
    if o is None:
        o = _empty_o(q, v, spec, call.o_is_like_q)
    lse = _empty_lse(q, spec) if with_lse else None
    workspace = workspace_for(call.plan, q.device) if call.plan.workspace_bytes else None
    kernel = call.kernel
    if kernel is None:
        return _without_keys(k, v, o, lse, spec)
    tensors = q, k, v, o, lse, workspace
    try:
        # Without Kernel's own call, which would cost half a microsecond.
        milliseconds = kernel.entry(kernel.handle, *tensors, scale, timed, *spec.extras)
    except Exception:
        check_tensors(**_named(q, k, v, o))
        refuse_transforms(q=q, k=k, v=v)  # torch's error of a tensor without memory says less
        raise
    return o, lse, milliseconds


def _first_call(
    key: _Key, config: ForwardKernelConfig | None, spec: Spec, **tensors: torch.Tensor
) -> _Call:
    """What later calls of this key have in common, found out once."""
    check_tensors(**tensors)
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    for name, tensor in tensors.items():
        check_rank(name, tensor, None)
    d_v = v.shape[-1]
    check_row_sizes(q.shape[-1], d_v)
    variant, chosen = spec.extras.variant, config
    if chosen is None:
        chosen = select_for(_workload(q, k, d_v, spec), q.device)
    check_before_building(chosen, **tensors)
    if {q.shape[-1], d_v} != {chosen.d_head}:
        variant = replace(variant, padded=True)
    if config is None:
        chosen = at_hand(chosen, variant, q.device)
    like_q = d_v == q.shape[-1]
    scale = q.shape[-1] ** -0.5
    if v.shape[1] == 0:
        call = _Call(config, None, Plan((), 0, 0), scale, like_q)
    else:
        kernel = kernel_for(chosen, variant, q.device)
        o = tensors.get("o")
        shaped = o if o is not None else q if like_q else q.new_empty(1).expand(*q.shape[:-1], d_v)
        plan = kernel.plan(q, k, v, shaped, extras=spec.extras)
        call = _Call(config or chosen, kernel, plan, scale, like_q)
    if len(_calls) >= _CALLS_REMEMBERED:
        _calls.clear()
    return _calls.setdefault(key, call)


def _workload(q: torch.Tensor, k: torch.Tensor, d_v: int, spec: Spec) -> Workload:
    """What a configuration is selected for."""
    dtypes = {dtype.to_torch_dtype(): dtype for dtype in DType}
    if q.dtype not in dtypes:
        raise TypeError(f"q has dtype {q.dtype}; supported are torch.float16 and torch.bfloat16")
    q_shape, k_shape = q.shape, k.shape
    if spec.batch is not None and spec.max_seqlen_k is not None:
        q_shape = torch.Size((spec.batch, spec.extras.max_seqlen_q, *q.shape[2:]))
        k_shape = torch.Size((spec.batch, spec.max_seqlen_k, *k.shape[2:]))
    problem = Problem.of_shapes(dtypes[q.dtype], q_shape, k_shape, d_v)
    return Workload(problem, spec.extras.variant)


def _named(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    return {"q": q, "k": k, "v": v} | ({} if o is None else {"o": o})


def _empty_o(q: torch.Tensor, v: torch.Tensor, spec: Spec, like_q: bool) -> torch.Tensor:
    """Rows of sequences that are not used are zero."""
    if spec.extras.seqused_q is not None:
        return q.new_zeros((*q.shape[:-1], v.shape[-1]))
    if like_q:
        return torch.empty_like(q, memory_format=torch.contiguous_format)
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _empty_lse(q: torch.Tensor, spec: Spec) -> torch.Tensor:
    batch, seq_len, n_heads, _ = q.shape
    shape = (batch, n_heads, seq_len)
    if spec.extras.seqused_q is not None:
        return torch.full(shape, -math.inf, dtype=torch.float32, device=q.device)
    return torch.empty(shape, dtype=torch.float32, device=q.device)


def _without_keys(
    k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor | None, spec: Spec
) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """No query sees anything but a sink."""
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(
            f"v has shape {tuple(v.shape)}, but k has {tuple(k.shape)}; they need the same batch "
            "size, seq_len_k and n_heads_kv"
        )
    o.zero_()
    if lse is not None:
        sinks = spec.extras.sinks
        lse.fill_(-math.inf) if sinks is None else lse.copy_(sinks[None, :, None].expand_as(lse))
    return o, lse, 0.0


# A call costs microseconds; finding a kernel again would cost tens.
_kernels: dict[tuple[ForwardKernelConfig, Variant, torch.device], Kernel] = {}


def kernel_for(cfg: ForwardKernelConfig, variant: Variant, device: torch.device) -> Kernel:
    """The kernel that ``forward`` launches, found or built when it is first asked for."""
    kernel = _kernels.get((cfg, variant, device))
    if kernel is None:
        instance, target = KernelId(cfg, variant), target_of(device)
        with announce_build(instance) as progress:
            kernel = find_kernel(instance, target, progress)
        log_kernel(instance, target, why_chosen(cfg, variant, device) or "named by the caller")
        kernel = _kernels.setdefault((cfg, variant, device), kernel)
    return kernel
