"""Calls of a backward: tensors with the forward's exact results, and their semantics."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from flashsmith.configs import BackwardKernelConfig, KernelId, Variant
from flashsmith.lab.soak import SoakCase
from flashsmith.lab.soak.prepared import extras_of
from flashsmith.reference import Packing, Semantics, lse_shape, reference_varlen
from flashsmith.runtime import CallArgs
from support.semantics import packing_of

_BEHIND = 3  # rows of packed tensors that belong to no sequence


@dataclass(frozen=True, eq=False)
class Call:
    """Tensors and semantics; rows that no sequence uses are NaN."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    lse: torch.Tensor
    do: torch.Tensor
    dlse: torch.Tensor | None
    semantics: Semantics
    packing: Packing

    @property
    def scale(self) -> float:
        scale = self.semantics.softmax_scale
        return self.q.shape[-1] ** -0.5 if scale is None else scale

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of ``flashsmith.attention``."""
        lengths = {name: t for name, t in vars(self.packing).items() if t is not None}
        return self.semantics.keywords | lengths

    @property
    def extras(self) -> CallArgs:
        longest_q = _longest(self.q, self.packing.cu_seqlens_q)
        longest_k = _longest(self.k, self.packing.cu_seqlens_k)
        return extras_of(self.semantics, self.packing, (longest_q, longest_k))

    def kernel(self, config: Any) -> KernelId:
        """Returns the kernel of a configuration that computes the call."""
        padded = {self.q.shape[-1], self.v.shape[-1]} != {config.d_head}
        return KernelId(config, replace(self.extras.variant, padded=padded))


def _longest(t: torch.Tensor, offsets: torch.Tensor | None) -> int:
    """Returns the rows of the longest sequence."""
    return t.shape[-3] if offsets is None else int(offsets.diff().max())


def call_of(
    dtype: torch.dtype,
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    d_v: int | None = None,
    packing: Packing | None = None,
    *,
    with_dlse: bool = False,
    step: float = 0.0,
    change: Callable[..., object] | None = None,
    **semantics: Any,
) -> Call:
    """Returns a call on normal tensors; with ``step``, on multiples of it between -2 and 2.

    change: Changes q, k, v and do in place.
    """
    packing, d_v = packing or Packing(), d_v or k_shape[-1]
    meaning = Semantics(**semantics)
    shapes = q_shape, k_shape, (*k_shape[:-1], d_v), (*q_shape[:-1], d_v)
    q, k, v, do = (_normal(shape, step).to(dtype) for shape in shapes)
    if change is not None:
        change(q, k, v, do)
    o, lse = reference_varlen(q, k, v, **vars(packing), **meaning.keywords)
    dlse = torch.randn(lse_shape(q)) if with_dlse else None
    o, lse = o.to(dtype), lse.float()
    unused_q, unused_k = (~used for used in used_rows(q, k, packing))
    for t in (q, o, do):
        t[unused_q] = math.nan
    for t in (k, v):
        t[unused_k] = math.nan
    for t in (lse, dlse):
        if t is not None:
            t.transpose(-1, -2)[unused_q] = math.nan
    return Call(q, k, v, o, lse, do, dlse, meaning, packing)


def packed_call(
    config: BackwardKernelConfig,
    lengths_q: list[int],
    lengths_k: list[int],
    heads: tuple[int, int] = (2, 1),
    **semantics: Any,
) -> Call:
    """Returns a BF16 call on packed sequences of these lengths, of heads of q and of k."""
    q_shape = (sum(lengths_q), heads[0], config.d_head)
    k_shape = (sum(lengths_k), heads[1], config.d_head)
    packing = packing_of(lengths_q, lengths_k)
    return call_of(torch.bfloat16, q_shape, k_shape, None, packing, **semantics)


def _normal(shape: tuple[int, ...], step: float) -> torch.Tensor:
    t = torch.randn(shape)
    return (t / step).round().mul(step).clamp(step - 2, 2 - step) if step else t


def drawn_call(case: SoakCase) -> Call:
    """Returns a call with a case's sizes, lengths and semantics."""
    problem, varlen = case.problem, case.varlen
    torch.manual_seed(case.seed)
    meaning = case.meaning.semantics(problem, case.softmax_scale, case.seed, "cpu")
    q_shape, k_shape = tuple(problem.q_shape), tuple(problem.k_shape)
    if varlen.lengths_q is not None:
        q_shape = (sum(varlen.lengths_q) + _BEHIND, *q_shape[2:])
    if varlen.lengths_k is not None:
        k_shape = (sum(varlen.lengths_k) + _BEHIND, *k_shape[2:])
    return call_of(
        problem.dtype.to_torch_dtype(), q_shape, k_shape, problem.d_v, varlen.packing("cpu"),
        with_dlse=case.seed % 2 == 1, **vars(meaning),
    )  # fmt: skip


def variant_call(variant: Variant) -> Call:
    """Returns a small BF16 call of d_head 64 that computes all of a variant; its numbers are
    multiples of 2^-4, whose products are exact."""
    d_head, d_v = (48, 40) if variant.padded else (64, 64)
    q_shape, k_shape, packing = (2, 70, 2, d_head), (2, 90, 1, d_head), None
    if variant.varlen:
        packing = packing_of([70, 0, 35], [90, 20, 30])
        q_shape, k_shape = (105, 2, d_head), (140, 1, d_head)
    return call_of(
        torch.bfloat16, q_shape, k_shape, d_v, packing, with_dlse=True, step=2.0**-4,
        **_meaning_of(variant),
    )  # fmt: skip


def _meaning_of(variant: Variant) -> dict[str, Any]:
    """Returns semantics for two heads, 70 queries and 90 keys, with a tensor of each kind."""
    causal = variant.causal and not variant.window
    meaning: dict[str, Any] = {"causal": causal, "softmax_scale": 0.2}
    if variant.window:
        meaning["window_size"] = (37, 5 if variant.causal else -1)
    if variant.softcap:
        meaning["softcap"] = 3.0
    if variant.alibi:
        meaning["alibi_slopes"] = torch.tensor([0.02, 0.05])
    if variant.sinks:
        meaning["sinks"] = torch.tensor([1.0, 3.0])
    if variant.bias:
        meaning["bias"] = torch.randn(2, 1, 70, 90).mul(4).round().div(4).to(torch.bfloat16)
        meaning["bias"][:, :, :, ::7] = -math.inf
    if variant.dropout:
        meaning |= {"dropout_p": 0.25, "rng_state": torch.tensor([2**40 + 17, 3])}
    return meaning


def used_rows(
    q: torch.Tensor, k: torch.Tensor, packing: Packing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns masks of the rows of q and of k that belong to a sequence and are used."""
    used_q, used_k = (torch.zeros(t.shape[:-2], dtype=torch.bool) for t in (q, k))
    for sequence in packing.sequences(q, k, Semantics()):
        used_q[sequence.place_q] = True
        used_k[sequence.place_k] = True
    return used_q, used_k
