"""Wrong numbers and calls that fail half way: where the host reads the numbers, it raises an error;
elsewhere no other memory is touched. The next call is right."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.errors import EmulatorFault
from flashsmith.jit import Target
from flashsmith.reference import Semantics
from flashsmith.runtime import CallArgs, emulation, find_decode
from flashsmith.selection.choose import forget_calls
from support.decoding import (
    PLAIN,
    WILD,
    Placed,
    Requests,
    assert_near_truth,
    assert_same_bits,
    in_pages,
    kernel_of,
    requests,
    run,
)


def decode(q: torch.Tensor, placed: Placed, **keywords: Any) -> Any:
    """Calls ``decode`` on a CPU, where the host reads lengths and page tables."""
    return flashsmith.decode(
        None, q, placed.k, placed.v, cache_seqlens=placed.seqlens, block_table=placed.block_table,
        cache_leftpad=placed.leftpad, return_lse=True, **keywords,
    )  # fmt: skip


def new_rows(asked: Requests, n: int) -> dict[str, torch.Tensor]:
    shape = (len(asked.lengths), n, *asked.k.shape[2:])
    return {name: torch.randn(shape).to(asked.k.dtype) for name in ("k_new", "v_new")}


def test_empty_requests_have_no_pages() -> None:
    asked = requests(PLAIN, (0, 0, 0), n_q=2)
    placed = in_pages(asked, 16)
    assert placed.block_table is not None
    assert (placed.block_table == WILD).all()
    for o, lse in (decode(asked.q, placed), run(PLAIN, asked, placed=placed, splits=3)):
        assert (o == 0).all()
        assert (lse == -math.inf).all()


@pytest.mark.parametrize("length", [71, 1 << 30, (1 << 31) - 1])
def test_a_length_beyond_the_table_is_cut_to_its_rows(length: int) -> None:
    """The emulator would report a read behind the last column of the page table."""
    asked = requests(PLAIN, (70, 33), n_q=2)
    placed = in_pages(asked, 10)
    assert placed.block_table is not None
    placed = replace(placed, block_table=placed.block_table[:, :7].contiguous())
    wild = replace(placed, seqlens=torch.tensor([length, 33], dtype=torch.int32))
    for splits in (0, 2):
        good = run(PLAIN, asked, placed=placed, splits=splits)
        assert_same_bits(good, run(PLAIN, asked, placed=wild, splits=splits))
    with pytest.raises(ValueError, match=f"cache_seqlens has {length}; expected 0 to 70"):
        decode(asked.q, wild)


@pytest.mark.parametrize("page", [WILD, -1, "one too many", (1 << 31) - 1])
@pytest.mark.parametrize("place", [0, 2, 3], ids=["first", "last", "of a new key"])
def test_a_page_that_is_nowhere_is_an_error_before_anything_is_written(
    place: int, page: int | str
) -> None:
    asked = requests(PLAIN, (24, 20))
    placed = in_pages(asked, 8)
    assert placed.block_table is not None
    n_pages = placed.k.shape[0]
    placed.block_table[:, 3] = 0  # the first request's new key needs it
    k, new = placed.k.clone(), new_rows(asked, 1)
    page = n_pages if isinstance(page, str) else page
    placed.block_table[0, place] = page
    words = f"block_table has page {page} for request 0; expected 0 to {n_pages - 1}"
    with pytest.raises(ValueError, match=words):
        decode(asked.q, placed, **new)
    assert torch.equal(placed.k.nan_to_num(), k.nan_to_num())
    if place == 3:
        decode(asked.q, placed)  # without a new key no page is needed


@pytest.mark.parametrize("n_new", [0, 30])
def test_pages_before_a_window_or_padding_may_be_anything(n_new: int) -> None:
    """The checks skip these pages, as kernels do not read them; but new keys need their pages."""
    whole = requests(PLAIN, (130, 64, 35), n_q=2)
    window = Semantics(causal=True, window_size=(20, 0))
    placed = in_pages(whole, 5)
    table, asked = placed.block_table, {"causal": True, "window_size": (20, 0)}
    assert table is not None
    rows = [slice(n - n_new, n) for n in whole.lengths]
    new = {
        f"{name}_new": torch.stack([t[i, each] for i, each in enumerate(rows)])
        for name, t in (("k", whole.k), ("v", whole.v))
    }
    first = [max(min(n - 2 - 20, n - n_new), 0) // 5 for n in whole.lengths]
    for request, pages in enumerate(first):
        table[request, :pages] = WILD
    before = replace(placed, seqlens=whole.seqlens - n_new)
    assert_near_truth(decode(whole.q, before, **new, **asked), whole, window)
    padded = replace(before, leftpad=torch.tensor([5 * pages for pages in first]).int())
    decode(whole.q, padded, **new)
    table[0, first[0]] = WILD
    for each, keywords in ((before, asked), (padded, {})):
        with pytest.raises(ValueError, match="block_table has page"):
            decode(whole.q, each, **new, **keywords)


def test_the_next_call_is_right_after_a_launch_that_was_stopped() -> None:
    """The counters of the splits must not start from what the stopped launch left."""
    asked = requests(PLAIN, (900,), heads=(2, 1))
    placed = in_pages(asked, 16)
    good = decode(asked.q, placed)
    kernel = find_decode(kernel_of(PLAIN, asked.q, asked.v, CallArgs()), Target.emulator())
    with emulation(kernel) as emulator:
        sites = emulator.sites()
    stopped = 0
    for site in sites:
        with emulation(kernel, count=False, dropped=site):
            try:
                decode(asked.q, placed)
            except EmulatorFault:
                stopped += 1
        assert_same_bits(decode(asked.q, placed), good)
    assert stopped > 0


@pytest.mark.parametrize("calls_before", [0, 1], ids=["the first call", "a call made again"])
def test_a_call_that_failed_after_its_new_keys_may_be_made_again(
    calls_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If memory ran out after the append, say, the repeated call writes the new keys to the same
    rows."""
    asked = requests(PLAIN, (40, 3), n_q=2)
    placed = in_pages(replace(asked, lengths=(45, 8)), 8)
    placed = replace(placed, seqlens=asked.seqlens)
    new = new_rows(asked, 5)
    keywords: dict[str, Any] = {"softcap": float(2 + calls_before), "splits": 2}
    twin = replace(placed, k=placed.k.clone(), v=placed.v.clone())
    good = decode(asked.q, twin, **new, **keywords)
    if calls_before == 0:
        forget_calls()

    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr("flashsmith.ops.bound_decode.Scratch.__call__", fails)
        with pytest.raises(torch.OutOfMemoryError):
            decode(asked.q, placed, **new, **keywords)
    assert_same_bits(decode(asked.q, placed, **new, **keywords), good)
    for cache, expected in ((placed.k, twin.k), (placed.v, twin.v)):
        assert torch.equal(cache.nan_to_num(), expected.nan_to_num())
