"""Calls of one size class share a kernel and its memory, and each is planned for its own sizes."""

from __future__ import annotations

from random import Random

import pytest
import torch

import flashsmith
from flashsmith.ops import decode_calls
from flashsmith.problem import size_class
from flashsmith.reference import Semantics
from flashsmith.selection.choose import forget_calls
from support.decoding import PLAIN, Placed, assert_near_truth, in_pages, in_slots, requests

BATCHES = 17, 18


@pytest.mark.parametrize("seed", range(2))
def test_batches_lengths_and_caches_change_from_call_to_call(seed: int) -> None:
    """Some windows hide nothing of a short cache, so that another kernel serves them."""
    assert len({size_class(batch) for batch in BATCHES}) == 1
    forget_calls()
    rng = Random(seed)
    torch.manual_seed(seed)
    for _ in range(24):
        longest = rng.choice((1, 20, 90, 300))
        lengths = tuple(rng.randint(0, longest) for _ in range(rng.choice(BATCHES)))
        asked = requests(PLAIN, lengths, n_q=2, behind=rng.choice((1, 7)))
        placed = in_pages(asked, 16) if rng.random() < 0.5 else in_slots(asked)
        window = rng.choice(((-1, -1), (40, 0)))
        found = flashsmith.decode(
            None, asked.q, placed.k, placed.v, cache_seqlens=placed.seqlens,
            block_table=placed.block_table, window_size=window, splits=rng.choice((0, 2)),
            return_lse=True,
        )  # fmt: skip
        assert_near_truth(found, asked, Semantics(window_size=window))  # type: ignore[arg-type]
    # There is a choice for each number of splits, and for each side of a window that hides keys.
    assert len(decode_calls._choices) <= 6


def test_more_and_more_memory_is_asked_for() -> None:
    """The calls share a kernel, and the memory of the first is too small for the last."""
    forget_calls()
    for rows in (1, 64, 4000, 3000):
        asked = requests(PLAIN, (rows,) * 17)
        assert_near_truth(
            flashsmith.decode(
                None, asked.q, asked.k, asked.v, cache_seqlens=asked.seqlens, return_lse=True
            ),  # type: ignore[arg-type]
            asked,
        )
    (choice,) = decode_calls._choices.values()
    assert choice.call._scratch._plan.workspace_bytes > 0


@pytest.mark.parametrize("batch", BATCHES)
def test_new_keys_go_behind_those_of_every_call(batch: int) -> None:
    forget_calls()
    for call in range(3):
        n_new, rows = 2, 30 + 9 * call
        asked = requests(PLAIN, tuple(rows - n_new - i for i in range(batch)), behind=n_new)
        new = torch.randn(2, batch, n_new, 2, 64).to(asked.k.dtype)
        cache = Placed(asked.k.clone(), asked.v.clone(), asked.seqlens)
        found = flashsmith.decode(
            None, asked.q, cache.k, cache.v, cache_seqlens=cache.seqlens, k_new=new[0],
            v_new=new[1], return_lse=True,
        )  # fmt: skip
        for i, n in enumerate(asked.lengths):
            asked.k[i, n : n + n_new], asked.v[i, n : n + n_new] = new[0, i], new[1, i]
        for written, expected in ((cache.k, asked.k), (cache.v, asked.v)):
            assert torch.equal(written.nan_to_num(), expected.nan_to_num())
        longer = tuple(n + n_new for n in asked.lengths)
        assert_near_truth(found, type(asked)(asked.q, asked.k, asked.v, longer))  # type: ignore[arg-type]
    assert len(decode_calls._choices) == 1


@pytest.mark.parametrize("n_q", [0, 2])
def test_a_cache_that_is_laid_out_wrong_is_refused_by_a_kernel_that_is_known(n_q: int) -> None:
    """The layout is refused without queries as well, when nothing is launched."""
    q, k = torch.randn(2, n_q, 2, 64).half(), torch.randn(2, 30, 2, 64).half()
    memory = torch.randn(k.numel() + 1).half()
    for makes_known in (False, True):
        forget_calls()
        if makes_known:
            assert flashsmith.decode(None, q, k, k).shape == q.shape
        with pytest.raises(ValueError, match="v_cache starts at an address that is not a mul"):
            flashsmith.decode(None, q, k, memory[1:].view(k.shape))
