"""Runs a backward's kernels on calls, computes the truth, and checks the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from flashsmith.configs import BackwardKernelConfig, KernelId, Sm90BackwardKernelConfig
from flashsmith.jit import Target
from flashsmith.reference import (
    TANH_APPROX_ERROR,
    ReferenceGradients,
    compare,
    gradient_allowance,
    gradients_with_rounded_weights,
    reference_gradients,
    score_error,
)
from flashsmith.runtime import (
    BackwardKernel,
    CallArgs,
    GradientTensors,
    emulation,
    find_backward,
)
from flashsmith.runtime.plan import Plan
from support.gradient_calls import Call

_GUARD = 7.0  # fills the memory around results
_GAP = 8  # elements at either end of a row, and of the head dimension behind the last head
_FP32 = 2.0**-22
_MAX_OF_MEAN = 1.5  # the largest ratio to the mean error of low precision
_MEAN_OF_MOVED = 0.25  # the largest ratio to the mean of what the kernel's tanh may move


# ---- the truth ----


def truth_of(call: Call, compute: torch.dtype = torch.float64) -> ReferenceGradients:
    """Computes the reference, sequence by sequence; rows that no sequence uses are NaN."""
    return _by_sequence(call, partial(reference_gradients, compute=compute), compute)


def _by_sequence(
    call: Call, gradients: Callable[..., ReferenceGradients], dtype: torch.dtype
) -> ReferenceGradients:
    given = {"dlse": call.dlse}
    if call.semantics.bias is not None:  # then there are no lengths
        return gradients(call.q, call.k, call.v, call.do, **given, **call.semantics.keywords)
    q, k, v = (torch.full_like(t, math.nan, dtype=dtype) for t in (call.q, call.k, call.v))
    sinks = call.semantics.sinks
    sinks = None if sinks is None else torch.zeros_like(sinks, dtype=torch.float64)
    for sequence in call.packing.sequences(call.q, call.k, call.semantics):
        own_q, own_do = sequence.of_q(call.q), sequence.of_q(call.do)
        own_k, own_v = sequence.of_k(call.k), sequence.of_k(call.v)
        given["dlse"] = None if call.dlse is None else sequence.of_lse(call.dlse)
        found = gradients(own_q, own_k, own_v, own_do, **given, **sequence.semantics.keywords)
        sequence.of_q(q)[:] = found.q
        sequence.of_k(k)[:] = found.k
        sequence.of_k(v)[:] = found.v
        if sinks is not None and found.sinks is not None:
            sinks += found.sinks
    return ReferenceGradients(q, k, v, sinks)


def assert_near_truth(found: ReferenceGradients, call: Call, what: object = "") -> None:
    """Asserts that the largest error is at most twice that of low precision, and the mean at most
    one and a half times, beside rounding of the exact gradient.

    Low precision is the same computation in the tensors' dtype, or with P, dS and o rounded to it:
    whichever is less exact. The first rounds nothing where a query sees a single key, and then
    the second says what the rounded o does to D.
    """
    exact, low = truth_of(call), truth_of(call, call.q.dtype)
    rounded = _by_sequence(call, gradients_with_rounded_weights, torch.float32)
    by_tanh = None
    if call.semantics.softcap:
        by_tanh = _by_sequence(call, _allowance_for_tanh, torch.float32)
    for name in ("q", "k", "v", "sinks", "bias"):
        own, right = getattr(found, name), getattr(exact, name)
        assert (own is None) == (right is None), name
        if own is None:
            continue
        roughs = [getattr(each, name).to(right.dtype) for each in (low, rounded)]
        rough = max(roughs, key=lambda t: _largest(t - right))
        moved = torch.zeros_like(right)
        if by_tanh is not None:
            moved = getattr(by_tanh, name).to(right.dtype).nan_to_num()
        of_largest = compare(own, right, rough, moved + _noise(call, name))
        assert of_largest.ok, f"{what}: d{name}: {of_largest}"
        allowed = _MAX_OF_MEAN * (_mean(rough, right) + _mean(right.to(own.dtype), right))
        allowed += _MEAN_OF_MOVED * _mean(moved, torch.zeros_like(moved)) + _noise(call, name)
        error = _mean(own, right)
        assert error <= allowed, f"{what}: d{name} is off by {error:.3g}, allowed {allowed:.3g}"


def _largest(t: torch.Tensor) -> float:
    return t.nan_to_num().abs().max().item() if t.numel() else 0.0


def _mean(found: torch.Tensor, exact: torch.Tensor) -> float:
    return (found.to(exact.dtype) - exact).abs().nanmean().nan_to_num().item()


def _noise(call: Call, name: str) -> float:
    """Returns the error that remains in a gradient of zero, from FP32 sums and the rounded o."""

    def size(t: torch.Tensor) -> float:
        return t.float().nan_to_num(0, 0, 0).abs().amax().item() if t.numel() else 0.0

    of_dP = size(call.do) * size(call.v) * call.v.shape[-1] ** 0.5
    if name != "sinks":
        return _FP32 * of_dP * call.scale * max(size(call.q), size(call.k))
    assert call.semantics.sinks is not None
    weight = (call.semantics.sinks[:, None] - call.lse).exp().nan_to_num(0, 1, 0).clamp(max=1)
    return torch.finfo(call.q.dtype).eps * size(weight) * size(call.o) * size(call.do)


def _allowance_for_tanh(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, **meaning: Any
) -> ReferenceGradients:
    """Returns how far the tanh of a kernel, which is not the exact LSE's, may move each element: by
    the weights, and by the slope 1 - tanh^2."""
    semantics = {name: each for name, each in meaning.items() if name != "dlse"}
    moved = (2 * score_error(q, k, tanh_error=TANH_APPROX_ERROR, **semantics).double()).expm1()
    return gradient_allowance(q, k, v, do, moved.clamp(max=2) + 2 * TANH_APPROX_ERROR, **meaning)


# ---- the kernels ----


def plan_of(kernel: KernelId, call: Call, extras: CallArgs | None = None) -> Plan:
    """Returns the plan of a call on the emulator; extras that are passed replace the call's."""
    loaded = find_backward(kernel, Target.emulator())
    return loaded.plan(tensors_of(call), extras=call.extras if extras is None else extras)


def launch(
    kernel: KernelId, call: Call, *, seed: int = 0, gaps: bool = False, are_new: bool = False
) -> ReferenceGradients:
    """Returns the kernels' results in memory that was NaN, with a workspace of NaN.

    are_new: Whether rows of no sequence become 0.
    gaps: Whether all tensors have gaps of NaN between their rows; the kernels must not write around
        results.
    """
    loaded = find_backward(kernel, Target.emulator())
    with emulation(loaded, seed=seed, count=False):
        return launch_loaded(loaded, call, gaps=gaps, are_new=are_new)


def launch_loaded(
    loaded: BackwardKernel, call: Call, *, gaps: bool = False, are_new: bool = False
) -> ReferenceGradients:
    extras = call.extras
    rooms = [_room(t, gaps) for t in (call.q, call.k, call.v)]
    tensors = tensors_of(call, [room.inside for room in rooms], gaps)
    n_bytes = loaded.plan(tensors, extras=extras).workspace_bytes
    workspace = torch.full((n_bytes // 4,), math.nan).view(torch.uint8) if n_bytes else None
    loaded(tensors, call.scale, are_new=are_new, workspace=workspace, extras=extras)
    for room in rooms:
        room.check()
    dbias = tensors.dbias
    if dbias is not None:
        dbias = dbias.sum_to_size(extras.bias.shape).to(extras.bias.dtype)
    dq, dk, dv = (room.inside.clone() for room in rooms)
    return ReferenceGradients(dq, dk, dv, tensors.dsinks, dbias)


def tensors_of(
    call: Call, results: Sequence[torch.Tensor] | None = None, gaps: bool = False
) -> GradientTensors:
    """Returns a backward's tensors; results that are not passed are made here."""
    dq, dk, dv = results or (torch.full_like(t, math.nan) for t in (call.q, call.k, call.v))
    q, k, v, o, do = (_laid_out(t, gaps) for t in (call.q, call.k, call.v, call.o, call.do))
    lse, dlse = call.lse, call.dlse
    meaning = call.semantics
    dsinks = None if meaning.sinks is None else torch.full_like(meaning.sinks, math.nan)
    dbias = None
    if meaning.bias is not None:
        dbias = torch.zeros(q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    return GradientTensors(q, k, v, o, lse, do, dq, dk, dv, dlse, dsinks, dbias)


@dataclass(frozen=True, eq=False)
class _Room:
    """Memory for a gradient, inside a larger tensor."""

    inside: torch.Tensor
    whole: torch.Tensor

    def check(self) -> None:
        """Asserts that nothing was written around the gradient."""
        found = self.inside.clone()
        self.inside.fill_(_GUARD)
        assert (self.whole == _GUARD).all(), "something was written around a gradient"
        self.inside.copy_(found)


def _room(like: torch.Tensor, gaps: bool) -> _Room:
    *batch, seq_len, heads, d = like.shape
    if gaps:
        whole = like.new_full((*batch, seq_len + 2, heads + 1, d + 2 * _GAP), _GUARD)
        inside = whole[..., 1:-1, :-1, _GAP:-_GAP]
    else:
        flat = like.new_full((like.numel() + 2 * _GAP,), _GUARD)
        whole, inside = flat, flat[_GAP:-_GAP].view(like.shape)
    inside.fill_(math.nan)
    return _Room(inside, whole)


def _laid_out(t: torch.Tensor, gaps: bool) -> torch.Tensor:
    """Returns the same values; if ``gaps``, with NaN before, behind and between the rows."""
    if not gaps:
        return t
    *batch, seq_len, heads, d = t.shape
    whole = t.new_full((*batch, seq_len + 2, heads + 1, d + 2 * _GAP), math.nan)
    return whole[..., 1:-1, :-1, _GAP:-_GAP].copy_(t)


def differing(
    config: BackwardKernelConfig, one: ReferenceGradients, other: ReferenceGradients
) -> list[str]:
    """Lists the gradients whose bits differ, among those that are the same at every run."""
    names = ["q"] if config.is_deterministic else []
    adds_parts = isinstance(config, Sm90BackwardKernelConfig) and config.adds_parts
    names += [] if adds_parts else ["k", "v"]
    names += ["sinks", "bias"]
    return [name for name in names if not _same(getattr(one, name), getattr(other, name))]


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Returns whether two tensors are equal, where NaN equals NaN."""
    if one is None or other is None:
        return one is other
    return torch.equal(one.nan_to_num(nan=_GUARD), other.nan_to_num(nan=_GUARD))
