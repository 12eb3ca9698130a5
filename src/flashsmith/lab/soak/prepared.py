"""Makes a case's tensors and a forward's right results, once for all kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch

from flashsmith.lab.soak.case import SoakCase
from flashsmith.lab.soak.layout import Placed, place
from flashsmith.lab.soak.meaning import Lengths
from flashsmith.lab.soak.values import QKV, make_values
from flashsmith.ops.functions import NO_FUNCTIONS, Functions
from flashsmith.reference import (
    TANH_APPROX_ERROR,
    Comparison,
    Packing,
    Semantics,
    attention_with_rounded_weights,
    compare,
    compare_lse,
    dropout_scale,
    lse_shape,
    lse_tolerance,
    reference_attention,
    reference_lse,
    score_error,
    score_range,
)
from flashsmith.runtime import CallArgs

_MAX_SCORES_AT_ONCE = 1 << 26  # 512 MiB of float64, of which several are alive
# Kernels flush exponentials below 2^-126 to 0, even the factor that rescales weights, up to 2^8
# relative to an earlier maximum, to the scale of a much larger sink.
_SMALLEST_WEIGHT = 2.0**-118
_ROWS_BEHIND_ALL = 3  # rows at the end of packed tensors that belong to no sequence


@dataclass(frozen=True)
class Truth:
    """The right results, and the errors that kernels may have; rows of no sequence are NaN."""

    o: torch.Tensor  # in the shape of q, float64
    low_precision: torch.Tensor  # the same with weights in q's dtype
    allowance: torch.Tensor  # one element a row of o: the effect of the scores' errors on o
    lse: torch.Tensor  # (batch, heads, seq_len_q) or (heads, total_q), float64
    lse_tolerance: torch.Tensor
    spread: torch.Tensor  # like allowance: the effect on o of an error of a row's score range
    lse_spread: torch.Tensor  # the same for lse
    used: torch.Tensor  # like allowance, bool: whether a sequence uses the row
    lse_used: torch.Tensor  # like lse

    def compare(
        self,
        o: torch.Tensor,
        lse: torch.Tensor,
        *,
        error_of_exp: float = 0.0,
        error_of_range: float = 0.0,
    ) -> tuple[Comparison, Comparison]:
        """Compares a kernel's o and LSE, in memory that was NaN.

        Args:
            error_of_exp: The relative error of the kernel's exponentials.
            error_of_range: The error of scores, as a share of their range.
        """
        allowance = self.allowance + error_of_range * self.spread
        tolerance = self.lse_tolerance + error_of_range * self.lse_spread + error_of_exp
        return (
            compare(o, self.o, self.low_precision, allowance),
            compare_lse(lse, self.lse, tolerance),
        )


@dataclass(frozen=True)
class PreparedCase:
    case: SoakCase
    placed: Placed
    inputs: QKV  # copies of q, k and v, to show that no kernel changes them
    semantics: Semantics
    packing: Packing
    extras: CallArgs
    truth: Truth | None  # None if there are no queries


def prepare(case: SoakCase, device: str) -> PreparedCase:
    """Returns the tensors of a case on ``device``, cuda or cpu, and its reference, computed there.

    Rows of q, k and v that no sequence uses are NaN.
    """
    q, k, v = make_values(
        case.values,
        case.problem.q_shape,
        case.problem.k_shape,
        (*case.problem.k_shape[:3], case.problem.d_v),
        case.problem.dtype.to_torch_dtype(),
        scale=case.scale,
        causal=case.meaning.causal,
        seed=case.seed,
        device=device,
        largest_weight=dropout_scale(case.meaning.dropout),
    )
    varlen = case.varlen
    q = _cut(q, varlen.lengths_q, varlen.used_q)
    k, v = (_cut(t, varlen.lengths_k, varlen.used_k) for t in (k, v))
    placed = place(case.layout, *(tensor.clone() for tensor in (q, k, v)))
    semantics = case.meaning.semantics(case.problem, case.softmax_scale, case.seed, device)
    packing = varlen.packing(device)
    truth = truth_of(q, k, v, semantics, packing) if q.numel() else None
    longest = case.problem.seq_len_q, case.problem.seq_len_k
    extras = extras_of(semantics, packing, longest, device)
    return PreparedCase(case, placed, (q, k, v), semantics, packing, extras, truth)


def extras_of(
    semantics: Semantics,
    packing: Packing,
    longest: tuple[int, int],
    device: torch.device | str = "cpu",
) -> CallArgs:
    """Returns the extra arguments of kernels on a device.

    longest: Upper bounds of a sequence's queries and keys.
    """
    left, right = semantics.window_size
    functions = NO_FUNCTIONS
    if not semantics.score_mod is semantics.mask_mod is None:
        device = torch.device(device)
        functions = Functions.traced(semantics.score_mod, semantics.mask_mod, device)
    return CallArgs(
        **vars(packing),
        alibi_slopes=semantics.alibi_slopes,
        bias=semantics.bias,
        sinks=semantics.sinks,
        softcap=semantics.softcap,
        window_left=left,
        window_right=0 if semantics.causal else right,
        top_left=semantics.top_left,
        rng_state=semantics.rng_state,
        dropout_p=semantics.dropout_p,
        max_seqlen_q=-1 if packing.cu_seqlens_q is None else longest[0],
        max_seqlen_k=-1 if packing.cu_seqlens_k is None else longest[1],
        **functions._asdict(),
    )


def truth_of(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    semantics: Semantics,
    packing: Packing,
    *,
    weights_in: torch.dtype | None = None,
    fp8_scores: bool = False,
) -> Truth:
    """Returns the right results for these tensors, computed in parts as large as memory allows.

    weights_in: Passed to ``attention_with_rounded_weights``.
    fp8_scores: Passed to ``score_error`` as fp8.
    """
    rows, of_lse = q.shape[:-1], lse_shape(q)

    def full(shape: tuple[int, ...], value: float | bool) -> torch.Tensor:
        dtype = torch.bool if isinstance(value, bool) else torch.float64
        return torch.full(shape, value, dtype=dtype, device=q.device)

    truth = Truth(
        o=full((*rows, v.shape[-1]), math.nan),
        low_precision=full((*rows, v.shape[-1]), math.nan),
        allowance=full((*rows, 1), 0.0),
        lse=full(of_lse, math.nan),
        lse_tolerance=full(of_lse, 0.0),
        spread=full((*rows, 1), 0.0),
        lse_spread=full(of_lse, 0.0),
        used=full((*rows, 1), False),
        lse_used=full(of_lse, False),
    )
    for sequence in packing.sequences(q, k, semantics):
        own = sequence.of_q(q), sequence.of_k(k), sequence.of_k(v)
        for heads, shared in head_slices(*own[:2]):
            meaning = sequence.semantics.part(slice(0, 1), heads)
            part = own[0][:, :, heads], own[1][:, :, shared], own[2][:, :, shared]
            found = _truth_of_part(*part, meaning, weights_in, fp8_scores)
            for each in fields(Truth):
                whole, value = getattr(truth, each.name), getattr(found, each.name)
                if each.name.startswith("lse"):
                    sequence.of_lse(whole)[:, heads] = value
                else:
                    sequence.of_q(whole)[:, :, heads] = value
    return truth


def _cut(t: torch.Tensor, lengths: Lengths | None, used: Lengths | None) -> torch.Tensor:
    """Returns a dense tensor, packed if sequences have lengths; rows that are not used are NaN."""
    if used is not None:
        for sequence, n in zip(t, used, strict=True):
            sequence[n:] = math.nan
    if lengths is None:
        return t
    behind = t.new_full((_ROWS_BEHIND_ALL, *t.shape[2:]), math.nan)
    return torch.cat([*(sequence[:n] for sequence, n in zip(t, lengths, strict=True)), behind])


def head_slices(q: torch.Tensor, k: torch.Tensor) -> Iterator[tuple[slice, slice]]:
    """Yields heads of q with their KV heads, as many at once as memory allows."""
    sharing = q.shape[2] // k.shape[2]
    scores = max(1, q.shape[1] * k.shape[1] * sharing)
    at_once = max(1, min(k.shape[2], _MAX_SCORES_AT_ONCE // scores))
    for first in range(0, k.shape[2], at_once):
        end = min(first + at_once, k.shape[2])
        yield slice(first * sharing, end * sharing), slice(first, end)


def _truth_of_part(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    semantics: Semantics,
    weights_in: torch.dtype | None,
    fp8_scores: bool,
) -> Truth:
    meaning = semantics.keywords
    lse = reference_lse(q, k, **meaning)
    error = score_error(q, k, **meaning, tanh_error=TANH_APPROX_ERROR, fp8=fp8_scores)
    largest_v = v.double().where(v.isfinite(), 0).abs().amax() if v.numel() else 0.0
    largest_v = largest_v * dropout_scale(semantics.dropout_p)
    spread = score_range(q, k, **meaning)

    def rows_of_o(of_lse: torch.Tensor) -> torch.Tensor:
        return of_lse.transpose(1, 2).unsqueeze(-1)

    # If weights are off by a factor of exp(2 e), their mean moves by at most expm1(2 e) times the
    # largest value, and never by more than the distance between two values.
    moved = (2 * error.double()).expm1().clamp(max=2)
    allowance = rows_of_o(moved * largest_v) + _SMALLEST_WEIGHT * k.shape[1] * largest_v
    return Truth(
        o=reference_attention(q, k, v, **meaning),
        low_precision=attention_with_rounded_weights(
            q, k, v, weights_in=weights_in, **meaning
        ).double(),
        allowance=allowance,
        lse=lse,
        lse_tolerance=lse_tolerance(lse, error, k.shape[1]),
        spread=rows_of_o(2 * spread * largest_v),
        lse_spread=spread,
        used=torch.ones_like(allowance, dtype=torch.bool),
        lse_used=torch.ones_like(lse, dtype=torch.bool),
    )
