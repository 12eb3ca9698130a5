"""The calls with packed queries over pages that are refused, and the messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from support.paged import D_HEAD, FEW, MANY, paged


def ints(*shape: int, of: int = 0) -> torch.Tensor:
    return torch.full(shape, of, dtype=torch.int32)


NO_PAGES = torch.zeros(0, 8, 2, D_HEAD)
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"table": torch.zeros(5, 5)}, TypeError, "block_table is torch.float32 on cpu; .*int32"),
    ({"table": ints(4, 5)}, ValueError, r"cu_seqlens_q has shape \(6,\); expected \(5,\), by"),
    ({"table": ints(5)}, ValueError, r"block_table has shape \(5,\); expected 2 dimensions"),
    ({"table": ints(5, 5, of=99)}, ValueError,
     "block_table has page 99 for request 0; expected 0 to .*, the pages of k"),
    ({"table": ints(5, 5, of=-1)}, ValueError, "block_table has page -1 for request 0"),
    ({"table": ints(5, 2)}, ValueError,
     "cu_seqlens_k has 40 keys for request 0; expected 0 to 32, the rows of its pages"),
    ({"table": [0]}, TypeError, "block_table is a list"),
    ({"k": torch.zeros(9, 2, D_HEAD)}, ValueError, "k has shape .* 4 dim.*page_size"),
    ({"v": torch.zeros(9, 8, 2, D_HEAD)}, ValueError, r"k has shape .* and v \(9, 8, .* of both"),
    ({"k": NO_PAGES, "v": NO_PAGES}, ValueError, r"k has shape \(0, 8, .* at least a page"),
    ({"q": torch.zeros(1, 9, 4, D_HEAD)}, ValueError, "q has shape .*; expected 3 dimensions"),
    ({"cu_seqlens_q": None}, TypeError, "cu_seqlens_q is NoneType"),
    ({"cu_seqlens_k": torch.zeros(6)}, TypeError, "cu_seqlens_k is torch.float32 on cpu"),
    ({"cu_seqlens_k": None}, TypeError, "cu_seqlens_k is NoneType; block_table needs torch.int32"),
    ({"cu_seqlens_k": ints(5)}, ValueError, r"cu_seqlens_k has shape \(5,\); expected \(6,\)"),
    ({"cu_seqlens_k": torch.tensor([0, 9, 3, 3, 3, 3]).int()}, ValueError,
     "cu_seqlens_k has -6 keys for request 1"),
    ({"cu_seqlens_k": torch.tensor([0, 71, 71, 71, 71, 71]).int()}, ValueError,
     "max_seqlen_k is 70, but a sequence has 71"),
    ({"cu_seqlens_q": torch.tensor([0, 3, 1, 4, 5, 6]).int()}, ValueError,
     r"cu_seqlens_q must be non-decreasing, but cu_seqlens_q\[2\] = 1 follows 3"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "error", "words"), BAD, ids=[words for *_, words in BAD])
@pytest.mark.parametrize("n_q", [MANY, FEW], ids=["many", "few"])
def test_bad_input_is_refused(
    n_q: tuple[int, ...], changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        replace(paged(n_q), **changed).attend()


def test_a_sequence_longer_than_the_longest_is_refused() -> None:
    given = paged(FEW)
    with pytest.raises(ValueError, match="max_seqlen_q is 2, but a sequence has 4 rows"):
        given.attend(lengths=(2, 70))


@pytest.mark.parametrize("side", ["q", "k"])
@pytest.mark.parametrize("maximum", [-1, 2.0])
def test_longest_lengths_that_are_none_are_refused(side: str, maximum: float) -> None:
    lengths = (maximum, 70) if side == "q" else (4, maximum)
    with pytest.raises(
        ValueError, match=f"max_seqlen_{side} is {maximum}; expected an int from 0 on"
    ):
        paged(FEW).attend(lengths=lengths)


@pytest.mark.parametrize("shape", [(10, 4, D_HEAD), (9, 4, D_HEAD)])
def test_out_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    given = paged(FEW)
    out = torch.zeros(shape, dtype=torch.float32 if shape[0] == 10 else given.q.dtype)
    with pytest.raises(
        ValueError, match=r"out has shape .*; expected \(10, 4, 64\), torch.bfloat16"
    ):
        given.attend(out=out)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_gradients_are_refused_where_they_are_asked_for(name: str) -> None:
    given = paged(FEW)
    asked = replace(given, **{name: getattr(given, name).clone().requires_grad_()})
    o, lse = asked.attend()
    assert torch.equal(o, given.attend()[0]) and not lse.requires_grad
    with pytest.raises(NotImplementedError, match="block_table was given; gradients"):
        o.sum().backward()
    with pytest.raises(NotImplementedError, match=f"{name} requires a gradient"):
        asked.attend(out=torch.empty_like(given.q))
    with torch.no_grad():
        assert not asked.attend()[0].requires_grad


def test_dropout_is_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"dropout_p is 0\.5 with block_table"):
        paged(FEW).attend(dropout_p=0.5)
