"""A result of slightly different semantics is not right."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from flashsmith.lab.soak import truth_of
from flashsmith.reference import Packing, Semantics, reference_varlen

HEADS, N_Q, N_K = 2, 40, 50
LENGTHS = Packing(
    torch.tensor([0, 15, 40]).int(),
    torch.tensor([0, 30, 50]).int(),
    torch.tensor([14, 25]).int(),
    torch.tensor([30, 19]).int(),
)
BIAS = torch.randn(1, HEADS, 25, 30, generator=torch.Generator().manual_seed(0)).half()
MEANING = Semantics(
    causal=True,
    window_size=(9, -1),
    softcap=5.0,
    alibi_slopes=torch.tensor([0.5, 0.03]),
    sinks=torch.tensor([0.5, 2.0]),
    bias=BIAS,
)
CHANGES: dict[str, dict[str, Any]] = {
    "a key less behind": {"window_size": (8, -1)},
    "a key more behind": {"window_size": (10, -1)},
    "a key more ahead": {"causal": False, "window_size": (9, 1)},
    "no mask ahead": {"causal": False},
    "no mask behind": {"window_size": (-1, -1)},
    "top left": {"top_left": True},
    "another scale": {"softmax_scale": 64**-0.5 * 1.02},
    "no cap": {"softcap": 0.0},
    "another cap": {"softcap": 6.0},
    "no slopes": {"alibi_slopes": None},
    "slopes of another sign": {"alibi_slopes": torch.tensor([-0.5, -0.03])},
    "slopes of the other head": {"alibi_slopes": torch.tensor([0.03, 0.5])},
    "a slope a little steeper": {"alibi_slopes": torch.tensor([0.5, 0.04])},
    "no sinks": {"sinks": None},
    "sinks of the other head": {"sinks": torch.tensor([2.0, 0.5])},
    "sinks in base 2": {"sinks": torch.tensor([0.5, 2.0]) * math.log2(math.e)},
    "no bias": {"bias": None},
    "the bias of the next key": {"bias": BIAS.roll(1, 3)},
    "the bias of the next query": {"bias": BIAS.roll(1, 2)},
    "the bias of the other head": {"bias": BIAS.flip(1)},
}
OTHER_LENGTHS = {
    "a query more": {"seqused_q": torch.tensor([15, 25]).int()},
    "a query less": {"seqused_q": torch.tensor([13, 25]).int()},
    "a key less": {"seqused_k": torch.tensor([30, 18]).int()},
    "a key more": {"seqused_k": torch.tensor([30, 20]).int()},
    "keys of a row before": {"cu_seqlens_k": torch.tensor([0, 29, 49]).int()},
}


def qkv() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q = 4 * torch.randn(N_Q, HEADS, 64)
    k, v = torch.randn(N_K, HEADS, 64), torch.randn(N_K, HEADS, 64)
    return q.half(), k.half(), v.half()


def results(meaning: Semantics, lengths: Packing) -> tuple[bool, bool]:
    """Returns whether o and lse of other semantics are right."""
    tensors = qkv()
    truth = truth_of(*tensors, MEANING, LENGTHS)
    o, lse = reference_varlen(*tensors, **vars(lengths), **meaning.keywords)
    written = truth_of(*tensors, meaning, lengths)
    o = o.masked_fill(~written.used, math.nan).half()
    lse = lse.masked_fill(~written.lse_used, math.nan).float()
    of_o, of_lse = truth.compare(o, lse)
    return of_o.ok, of_lse.ok


def test_the_same_meaning_is_right() -> None:
    assert results(MEANING, LENGTHS) == (True, True)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_another_meaning_is_wrong(change: dict[str, Any]) -> None:
    o, lse = results(replace(MEANING, **change), LENGTHS)
    assert not lse
    assert not o


@pytest.mark.parametrize("change", OTHER_LENGTHS.values(), ids=OTHER_LENGTHS.keys())
def test_other_lengths_are_wrong(change: dict[str, Any]) -> None:
    assert results(MEANING, replace(LENGTHS, **change)) == (False, False)


def test_of_the_order_of_cap_and_slopes_only_one_is_right() -> None:
    tensors = qkv()
    meaning = Semantics(softcap=5.0, alibi_slopes=torch.tensor([0.5, 0.03]))
    truth = truth_of(*tensors, meaning, LENGTHS)
    slopes = meaning.alibi_slopes
    assert slopes is not None

    def slopes_first(s: torch.Tensor, b: Any, h: Any, i: Any, j: Any) -> torch.Tensor:
        n_q, n_k = s.shape[-2:]
        return s - slopes[h] * (i + n_k - n_q - j).abs()

    other = Semantics(softcap=5.0, score_mod=slopes_first)
    o, lse = reference_varlen(*tensors, **vars(LENGTHS), **other.keywords)
    o = o.masked_fill(~truth.used, math.nan).half()
    lse = lse.masked_fill(~truth.lse_used, math.nan).float()
    assert not any(comparison.ok for comparison in truth.compare(o, lse))
