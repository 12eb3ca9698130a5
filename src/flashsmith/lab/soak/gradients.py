"""Prepares a case's tensors for a backward, and the gradients that they should give."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from flashsmith.lab.soak.case import SoakCase
from flashsmith.lab.soak.layout import Results, make_flat_room, make_room
from flashsmith.lab.soak.prepared import PreparedCase, head_slices, prepare
from flashsmith.lab.soak.values import QKV
from flashsmith.reference import (
    TANH_APPROX_ERROR,
    Comparison,
    ReferenceGradients,
    compare,
    dropout_scale,
    gradient_allowance,
    gradients_with_rounded_weights,
    reference_gradients,
    score_error,
)
from flashsmith.reference.packing import PackedSequence

_FLUSHED = 2.0**-118  # products of numbers near the smallest normal one become 0
# A sink's gradient is one number, and in low precision the error of rounding o may cancel in it by
# luck. So it is allowed this share of the error that all terms could have together.
_SHARE_OF_O = 2.0**-4
_FLOAT32_ERROR = 2.0**-22  # of sums, and of an exponential
_SLOPE_ERROR = 2 * TANH_APPROX_ERROR  # of a softcap's derivative, 1 - tanh^2

ByName = dict[str, torch.Tensor]  # "dq", "dk", "dv", and "dsinks" and "dbias" if the case has them


@dataclass(frozen=True)
class GradientTruth:
    """The right gradients, and the errors that kernels may have; rows of no sequence are NaN.

    Attributes:
        exact: In float64, in the shapes of q, k, v, sinks and bias.
        low_precision: The same with weights rounded.
        allowance: By how much elements may differ beyond that, in float32.
        used: Whether a sequence uses the row; its shape broadcasts to the gradient's.
    """

    exact: ByName
    low_precision: ByName
    allowance: ByName
    used: ByName

    def compare(self, found: Mapping[str, torch.Tensor]) -> dict[str, Comparison]:
        return {
            name: compare(
                t, self.exact[name], self.low_precision[name], self.allowance[name] + _FLUSHED
            )
            for name, t in found.items()
        }


@dataclass(frozen=True)
class PreparedGradients:
    """The tensors of a backward, beside those of its forward, and the right results."""

    forward: PreparedCase  # its o and lse hold the exact results
    do: torch.Tensor
    dlse: torch.Tensor | None
    results: Results
    truth: GradientTruth


def prepare_gradients(case: SoakCase, device: str) -> PreparedGradients:
    """Returns the tensors of a case on ``device`` and the truth, computed there.

    Every second case has a gradient of the LSE. In all tensors, rows that no sequence uses are NaN.
    """
    forward = prepare(case, device)
    placed, truth = forward.placed, forward.truth
    for whole in placed.results.around:
        whole.fill_(math.nan)
    do, dlse = _random_gradients(forward)
    if truth is not None:
        placed.o.copy_(truth.o)
        placed.lse.copy_(truth.lse)
        do.masked_fill_(~truth.used, math.nan)
        dlse.masked_fill_(~truth.lse_used, math.nan)
    given = dlse if case.seed % 2 else None
    expected = _truth_of(forward, do, given)
    laid_out, around = make_room(case.layout, do, do.shape[-1])
    around.fill_(math.nan)
    return PreparedGradients(forward, laid_out.copy_(do), given, _make_results(forward), expected)


def _random_gradients(forward: PreparedCase) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws dO and dLSE. The larger the values, the smaller is dO: dP = dO V^T, minus D, is rounded
    to 16 bits, and has to stay within their range."""
    case, o, lse = forward.case, forward.placed.o, forward.placed.lse
    generator = torch.Generator(o.device).manual_seed(case.seed + 1)
    v = forward.inputs[2].float()
    largest = v.where(v.isfinite(), 0).abs().amax().item() if v.numel() else 0.0
    largest *= dropout_scale(case.meaning.dropout)
    do = torch.randn(o.shape, generator=generator, device=o.device) * min(1.0, 8 / max(largest, 1))
    return do.to(o.dtype), torch.randn(lse.shape, generator=generator, device=o.device)


def _make_results(forward: PreparedCase) -> Results:
    problem, layout, semantics = forward.case.problem, forward.case.layout, forward.semantics
    q, k, v = forward.inputs
    by_name = {"dq": q, "dk": k, "dv": v}
    rooms = {name: make_room(layout, t, t.shape[-1]) for name, t in by_name.items()}
    if semantics.sinks is not None:
        rooms["dsinks"] = make_flat_room(q, (problem.heads,))
    if semantics.bias is not None:
        shape = (problem.batch, problem.heads, problem.seq_len_q, problem.seq_len_k)
        rooms["dbias"] = make_flat_room(q, shape)
    return Results(
        {name: inside for name, (inside, _) in rooms.items()},
        tuple(around for _, around in rooms.values()),
        begin_at_zero=frozenset({"dsinks", "dbias"}),
    )


def _truth_of(forward: PreparedCase, do: torch.Tensor, dlse: torch.Tensor | None) -> GradientTruth:
    """Computes the truth in parts as large as memory allows."""
    (q, k, v), semantics = forward.inputs, forward.semantics
    rows = {"dq": q, "dk": k, "dv": v}
    if_given = {"dsinks": semantics.sinks, "dbias": semantics.bias}
    sums = {name: t for name, t in if_given.items() if t is not None}

    def empty(dtype: torch.dtype, value: float) -> ByName:
        found = {name: torch.full_like(t, value, dtype=dtype) for name, t in rows.items()}
        return found | {name: torch.zeros_like(t, dtype=dtype) for name, t in sums.items()}

    truth = GradientTruth(
        exact=empty(torch.float64, math.nan),
        low_precision=empty(torch.float64, math.nan),
        allowance=empty(torch.float64, 0.0),
        used={name: torch.zeros_like(t, dtype=torch.bool) for name, t in rows.items()}
        | {name: torch.ones_like(t, dtype=torch.bool) for name, t in sums.items()},
    )
    for number, sequence in enumerate(forward.packing.sequences(q, k, semantics)):
        for name in rows:
            _of(name, sequence, truth.used[name])[:] = True
        for heads, shared in head_slices(sequence.of_q(q), sequence.of_k(k)):
            part = _Part(sequence, number, heads, shared)
            wholes = truth.exact, truth.low_precision, truth.allowance
            for whole, found in zip(wholes, part.truth((q, k, v), do, dlse), strict=True):
                part.put(found, whole)
    return truth


def _of(name: str, sequence: PackedSequence, t: torch.Tensor) -> torch.Tensor:
    return sequence.of_q(t) if name == "dq" else sequence.of_k(t)


@dataclass(frozen=True)
class _Part:
    """Some heads of a sequence, by which the truth is computed."""

    sequence: PackedSequence
    number: int
    heads: slice  # of q
    shared: slice  # of k and v

    def truth(
        self, qkv: QKV, do: torch.Tensor, dlse: torch.Tensor | None
    ) -> Iterator[ReferenceGradients]:
        """Yields the exact gradients, the low-precision ones, and the allowance."""
        q, do = (self.sequence.of_q(t)[:, :, self.heads] for t in (qkv[0], do))
        k, v = (self.sequence.of_k(t)[:, :, self.shared] for t in qkv[1:])
        own = None if dlse is None else self.sequence.of_lse(dlse)[:, self.heads]
        semantics = self.sequence.semantics.part(slice(0, 1), self.heads)
        meaning = semantics.keywords
        yield reference_gradients(q, k, v, do, dlse=own, **meaning)
        yield gradients_with_rounded_weights(q, k, v, do, dlse=own, **meaning)
        moved = (2 * score_error(q, k, tanh_error=TANH_APPROX_ERROR, **meaning).double()).expm1()
        errors = moved.clamp(max=2) + _FLOAT32_ERROR
        if semantics.softcap > 0:
            errors += _SLOPE_ERROR
        allowance = gradient_allowance(q, k, v, do, errors, dlse=own, **meaning)
        if allowance.sinks is None:
            yield allowance
            return
        errors += torch.finfo(q.dtype).eps * _SHARE_OF_O
        of_sinks = gradient_allowance(q, k, v, do, errors, dlse=own, **meaning).sinks
        yield replace(allowance, sinks=of_sinks)

    def put(self, found: ReferenceGradients, whole: ByName) -> None:
        """Writes gradients to these heads' part of ``whole``; those of sinks and bias are added."""
        for name, heads in (("dq", self.heads), ("dk", self.shared), ("dv", self.shared)):
            _of(name, self.sequence, whole[name])[:, :, heads] = getattr(found, name[1:])
        if found.sinks is not None:
            whole["dsinks"][self.heads] += found.sinks
        if found.bias is not None:
            bias = whole["dbias"]
            sample = slice(self.number, self.number + 1) if bias.shape[0] > 1 else slice(None)
            bias[sample, self.heads if bias.shape[1] > 1 else slice(None)] += found.bias
