"""The gradients of a call: which are asked for, and the tensors that kernels write."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from flashsmith.ops.layout import with_aligned_rows
from flashsmith.ops.spec import AttentionSpec
from flashsmith.runtime import GradientTensors


class Gradients(NamedTuple):
    """The gradients of a loss by q, k and v, contiguous and of their shapes; and by sinks and bias,
    of their shapes and dtypes, if they are computed."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sinks: torch.Tensor | None = None
    bias: torch.Tensor | None = None


class GradientMask(NamedTuple):
    """The gradients that are computed beside those of q, k and v."""

    sinks: bool = False
    bias: bool = False


NOTHING_ELSE = GradientMask()


def with_outputs(
    given: GradientTensors, spec: AttentionSpec, wanted: GradientMask
) -> GradientTensors:
    """Returns the tensors with a do that kernels support, and new tensors for missing outputs.
    Kernels write all of them, except rows outside all sequences if some outputs are the caller's:
    then new ones start as zeros."""
    q, k = given.q, given.k
    dsinks = dbias = None
    if wanted.sinks:
        dsinks = q.new_zeros(q.shape[-2], dtype=torch.float32)
    if wanted.bias:
        shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
        dbias = q.new_zeros(shape, dtype=torch.float32)
    dq, dk, dv = given[6:9]
    if dq is dk is dv is None:
        dq = torch.empty_like(q, memory_format=torch.contiguous_format)
        dk = torch.empty_like(k, memory_format=torch.contiguous_format)
        dv = torch.empty_like(given.v, memory_format=torch.contiguous_format)
        if spec.is_varlen and _has_no_sequence(spec):
            torch._foreach_zero_([dq, dk, dv])  # in one launch
    else:
        make = torch.zeros_like if spec.is_varlen else torch.empty_like
        dq, dk, dv = (
            make(t, memory_format=torch.contiguous_format) if into is None else into
            for t, into in zip(given[:3], (dq, dk, dv), strict=True)
        )
    # Autograd passes gradients unchanged: lazily negated views, any strides.
    do = (
        torch.zeros_like(given.o) if given.do is None else with_aligned_rows(given.do.resolve_neg())
    )
    dlse = None if given.dlse is None else given.dlse.resolve_neg().contiguous()
    return GradientTensors(*given[:5], do, dq, dk, dv, dlse, dsinks, dbias)


def _has_no_sequence(spec: AttentionSpec) -> bool:
    """Returns whether there are no sequences: then no kernel is launched."""
    offsets = spec.cu_seqlens_q if spec.cu_seqlens_q is not None else spec.cu_seqlens_k
    return offsets is not None and offsets.numel() < 2


def write_without_keys(tensors: GradientTensors) -> None:
    """Writes the gradients if no query sees anything but a sink, whose weight is 1. A row outside
    the used ones, or with a sink of -inf, has a log-sum-exp of -inf and no weight."""
    tensors.dq.zero_()
    if tensors.dsinks is not None and tensors.dlse is not None:
        has_weight = tensors.lse > -math.inf
        of_heads = tensors.dlse.where(has_weight, 0).sum(-1)
        tensors.dsinks.copy_(of_heads.sum(0) if of_heads.ndim > 1 else of_heads)


def gradients_of(found: GradientTensors, spec: AttentionSpec) -> Gradients:
    """Returns the gradients, with those of sinks and bias in the dtypes of their tensors."""
    dsinks, dbias = found.dsinks, found.dbias
    if dsinks is not None and spec.sinks is not None:
        dsinks = dsinks.to(spec.sinks.dtype)
    if dbias is not None and spec.bias is not None:
        dbias = dbias.sum_to_size(spec.bias.shape).to(spec.bias.dtype)
    return Gradients(found.dq, found.dk, found.dv, dsinks, dbias)
