"""``flashsmith.decode``: its arguments and results."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.ops import decode_calls
from flashsmith.reference import Semantics
from support.bad_input import MARK
from support.decoding import (
    PLAIN,
    WILD,
    Requests,
    assert_near_truth,
    assert_right,
    in_pages,
    requests,
)


def call(asked: Requests, **keywords: Any) -> tuple[torch.Tensor, torch.Tensor]:
    given = {"cache_seqlens": asked.seqlens} | keywords
    return flashsmith.decode(None, asked.q, asked.k, asked.v, **given, return_lse=True)


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_a_call_made_again_reads_lengths_and_pages_anew() -> None:
    asked = requests(PLAIN, (70, 33, 5), n_q=2)
    placed = in_pages(asked, 16)
    assert placed.block_table is not None
    seqlens, table = asked.seqlens, placed.block_table
    for lengths in ((70, 33, 5), (10, 0, 5), (33, 33, 1)):
        seqlens.copy_(torch.tensor(lengths))
        found = flashsmith.decode(
            None, asked.q, placed.k, placed.v, cache_seqlens=seqlens, block_table=table,
            return_lse=True,
        )  # fmt: skip
        now = Requests(asked.q, asked.k, asked.v, lengths)
        assert_near_truth(found, now)
        # Other pages of other sizes leave the bits as they were.
        other = in_pages(asked, 16, seed=lengths[0])
        again = flashsmith.decode(
            None, asked.q, other.k, other.v, cache_seqlens=seqlens, block_table=other.block_table
        )
        assert torch.equal(found[0], again)


def test_a_kernel_is_chosen_once_for_calls_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice also holds for other lengths, strides, and batch sizes of one class."""
    asked = requests(PLAIN, (20,) * 17)
    call(asked)
    monkeypatch.setattr(decode_calls, "_checked_config", lambda *_: pytest.fail("chosen again"))
    for lengths in ((20,) * 17, (9, 30) * 9):
        asked = requests(PLAIN, lengths)
        assert_near_truth(call(asked), asked)
        wide = torch.cat([asked.v] * 2, -1)[..., :64]
        asked = Requests(asked.q, asked.k, wide, asked.lengths)
        assert_near_truth(call(asked), asked)


def test_numbers_that_are_not_looked_at_are_taken_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU the host does not read lengths, so a wild one is clamped; one length for all becomes
    a tensor."""
    monkeypatch.setattr("flashsmith.ops.kv_cache.may_look_at", lambda _: False)
    asked = requests(PLAIN, (20, 20), behind=0)
    for _ in range(3):
        assert_near_truth(call(asked, cache_seqlens=20), asked)
        assert_near_truth(call(asked, cache_seqlens=None), asked)
        assert_near_truth(call(asked, cache_seqlens=ints(20, 77)), asked)
    with pytest.raises(TypeError, match="cache_seqlens has dtype"):
        call(asked, cache_seqlens=torch.tensor([20, 20]))
    with pytest.raises(ValueError, match="cache_seqlens has shape"):
        call(asked, cache_seqlens=ints(20))
    with pytest.raises(TypeError, match="k_new is a int; expected a torch"):
        call(asked, cache_seqlens=ints(10, 10), k_new=3, v_new=3)


def test_calls_that_differ_in_one_thing_are_told_apart() -> None:
    """The calls run one after the other, twice, so that none may reuse what another call
    remembered."""
    asked = requests(PLAIN, (70, 33, 5), n_q=2)
    slopes, sinks = torch.rand(4), torch.randn(4)
    ways: list[dict[str, Any]] = [
        {},
        {"causal": True},
        {"window_size": (9, 0)},
        {"softcap": 3.0},
        {"alibi_slopes": slopes},
        {"sinks": sinks},
        {"softmax_scale": 0.3},
        {"window_size": (11, 0)},
        {"softcap": 2.0},
    ]
    for way in [*ways, *reversed(ways)]:
        for splits in (0, 2):
            assert_near_truth(call(asked, splits=splits, **way), asked, Semantics(**way))


def test_sinks_may_come_in_the_dtype_of_a_model() -> None:
    asked = requests(PLAIN, (20, 1))
    sinks = torch.randn(4).to(torch.bfloat16)
    assert_near_truth(call(asked, sinks=sinks), asked, Semantics(sinks=sinks.float()))


def test_a_length_for_all_is_a_number() -> None:
    asked = requests(PLAIN, (20, 20))
    assert_near_truth(call(asked, cache_seqlens=20), asked)


def test_out_takes_the_result_by_its_strides() -> None:
    asked = requests(PLAIN, (20, 3), n_q=2)
    wide = torch.full((2, 2, 4, 2 * PLAIN.d_head), MARK, dtype=asked.q.dtype)
    out = wide[..., : PLAIN.d_head]
    o = flashsmith.decode(None, asked.q, asked.k, asked.v, cache_seqlens=asked.seqlens, out=out)
    assert o is out
    assert torch.equal(out, call(asked)[0])
    assert (wide[..., PLAIN.d_head :] == MARK).all()


def test_a_configuration_may_be_named_and_measured() -> None:
    asked = requests(PLAIN, (20, 3))
    o, milliseconds = flashsmith.decode(
        PLAIN, asked.q, asked.k, asked.v, cache_seqlens=asked.seqlens, benchmark=True
    )
    assert torch.equal(o, call(asked)[0])
    assert milliseconds > 0


@pytest.mark.parametrize("shape", [(0, 1, 4), (2, 0, 4), (2, 1, 0)], ids=str)
def test_nothing_asked_for_is_nothing_computed(shape: tuple[int, int, int]) -> None:
    batch, n_q, n_heads = shape
    q = torch.randn(batch, n_q, n_heads, 64).to(torch.bfloat16)
    k = torch.randn(batch, 7, n_heads // 2, 64).to(torch.bfloat16)
    o, lse = flashsmith.decode(None, q, k, k, return_lse=True)
    assert o.shape == q.shape
    assert lse.shape == (batch, n_heads, n_q)


@pytest.mark.parametrize("sink", [80.0, 88.0, 100.0, 1000.0])
def test_a_sink_far_above_all_scores_leaves_next_to_nothing(sink: float) -> None:
    """The weight of a score 88 below the sink is less than 2^-126, which GPUs flush to 0."""
    asked = requests(PLAIN, (40, 7), n_q=3)
    o, lse = assert_right(PLAIN, asked, Semantics(sinks=torch.full((4,), sink)))
    assert o.any() == (sink < 95)
    torch.testing.assert_close(lse, torch.full_like(lse, sink))


def test_a_cache_without_rows_gives_zeros_and_the_sinks() -> None:
    q = torch.randn(2, 3, 4, 64).to(torch.bfloat16)
    k = q.new_empty(2, 0, 2, 64)
    sinks = torch.randn(4)
    for paging in ({}, {"block_table": torch.empty(2, 0, dtype=torch.int32)}):
        keys = k if not paging else q.new_empty(5, 16, 2, 64)
        o, lse = flashsmith.decode(None, q, keys, keys, return_lse=True, **paging)
        assert (o == 0).all()
        assert (lse == -math.inf).all()
        o, lse = flashsmith.decode(None, q, keys, keys, sinks=sinks, return_lse=True, **paging)
        torch.testing.assert_close(lse, sinks[None, :, None].expand(2, 4, 3))


def test_pages_that_are_not_used_may_be_anything() -> None:
    asked = requests(PLAIN, (20, 3))
    placed = in_pages(asked, 8)
    assert placed.block_table is not None
    assert (placed.block_table == WILD).any()
    keywords = {"cache_seqlens": placed.seqlens, "block_table": placed.block_table}
    o = flashsmith.decode(None, asked.q, placed.k, placed.v, **keywords)
    assert torch.equal(o, call(asked)[0])
