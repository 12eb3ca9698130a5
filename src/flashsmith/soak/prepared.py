"""A case's tensors and what they should give: made once, used by every kernel of the case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from flashsmith.problem import Problem
from flashsmith.reference import (
    attention_with_rounded_weights,
    lse_tolerance,
    reference_attention,
    reference_lse,
    score_error,
)
from flashsmith.soak.case import SoakCase
from flashsmith.soak.layout import Placed, place
from flashsmith.soak.values import QKV, make_values

_MAX_SCORES_AT_ONCE = 1 << 26  # half a gigabyte of float64, of which several are alive


@dataclass(frozen=True)
class Truth:
    """What is right, and how far off a kernel may be."""

    o: torch.Tensor  # (batch, seq_len_q, heads, d_head), float64
    low_precision: torch.Tensor  # the same with weights in q's dtype
    allowance: torch.Tensor  # (batch, seq_len_q, heads, 1): what the error of scores does to o
    lse: torch.Tensor  # (batch, heads, seq_len_q), float64
    lse_tolerance: torch.Tensor


@dataclass(frozen=True)
class PreparedCase:
    case: SoakCase
    placed: Placed
    inputs: QKV  # copies of q, k and v, which no kernel may change
    truth: Truth | None  # None where there is nothing to compute, or no key


def prepare(case: SoakCase, device: str) -> PreparedCase:
    """The tensors of a case on ``device``, cuda or cpu, and its reference, computed there."""
    inputs = make_values(
        case.values,
        case.problem.q_shape,
        case.problem.k_shape,
        case.problem.dtype.to_torch_dtype(),
        scale=case.scale,
        causal=case.variant.causal,
        seed=case.seed,
        device=device,
    )
    placed = place(case.layout, *(tensor.clone() for tensor in inputs))
    truth = _truth(case, inputs) if case.problem.n_scores else None
    return PreparedCase(case, placed, inputs, truth)


def _truth(case: SoakCase, inputs: QKV) -> Truth:
    parts = [_truth_of_part(case, *part) for part in _parts(case.problem, inputs)]

    def join(name: str) -> torch.Tensor:
        # A part is some heads of one sample: (1, seq_len, some, ...) or (1, some, seq_len).
        heads_first = [
            getattr(part, name) if name.startswith("lse") else getattr(part, name).transpose(1, 2)
            for part in parts
        ]
        whole = torch.cat(heads_first, 1)
        whole = whole.view(case.problem.batch, case.problem.heads, *whole.shape[2:])
        return whole if name.startswith("lse") else whole.transpose(1, 2)

    return Truth(*map(join, Truth.__dataclass_fields__))


def _parts(problem: Problem, inputs: QKV) -> Iterator[QKV]:
    """Heads of one sample, as many at once as memory allows: those of one head of k at least."""
    q, k, v = inputs
    sharing = problem.heads // problem.heads_kv
    scores = problem.seq_len_q * problem.seq_len_k * sharing
    at_once = max(1, min(problem.heads_kv, _MAX_SCORES_AT_ONCE // scores))
    for sample in range(problem.batch):
        for first in range(0, problem.heads_kv, at_once):
            shared = slice(first, first + at_once)
            own = slice(first * sharing, (first + at_once) * sharing)
            row = slice(sample, sample + 1)
            yield q[row, :, own], k[row, :, shared], v[row, :, shared]


def _truth_of_part(case: SoakCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Truth:
    options = {"causal": case.variant.causal, "softmax_scale": case.softmax_scale}
    lse = reference_lse(q, k, **options)  # type: ignore[arg-type]
    error = score_error(q, k, **options)  # type: ignore[arg-type]
    largest_v = v.float().where(v.isfinite(), 0).abs().max()
    return Truth(
        o=reference_attention(q, k, v, **options),  # type: ignore[arg-type]
        low_precision=attention_with_rounded_weights(q, k, v, **options),  # type: ignore[arg-type]
        # Weights off by a factor of 1 + e move their mean by 2 e times the largest value at most.
        allowance=(2 * error * largest_v).transpose(1, 2).unsqueeze(-1).double(),
        lse=lse,
        lse_tolerance=lse_tolerance(lse, error, case.problem.seq_len_k),
    )
