"""Layouts of a KV cache: pages of any size and order, slots, padding, strides; no other memory is
read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flashsmith.configs import DecodeKernelConfig
from flashsmith.reference import Semantics
from support.decoding import (
    HEURISTICS,
    PLAIN,
    VARIED,
    WILD,
    Placed,
    Requests,
    assert_near_truth,
    assert_right,
    assert_same_bits,
    in_pages,
    in_slots,
    requests,
    run,
)
from support.far import untouched


@pytest.mark.parametrize("page_size", [1, 3, 16, 64, 100, 256])
def test_pages_of_any_size_and_order_have_the_bits_of_whole_entries(page_size: int) -> None:
    asked = requests(PLAIN, n_q=2)
    found = assert_right(PLAIN, asked, splits=2)
    for seed in range(2):
        assert_same_bits(
            found, run(PLAIN, asked, placed=in_pages(asked, page_size, seed), splits=2)
        )


@pytest.mark.parametrize("cfg", [*HEURISTICS[1:], *VARIED], ids=str)
def test_every_configuration_reads_pages(cfg: DecodeKernelConfig) -> None:
    asked = requests(cfg, (0, 1, 33, 150), heads=(2, 1))
    assert_right(cfg, asked, placed=in_pages(asked, 7))


def test_a_window_reads_no_page_before_it() -> None:
    """Pages before the window may belong to other requests by now."""
    asked = requests(PLAIN, (130, 64, 15), n_q=2)
    window = Semantics(causal=True, window_size=(20, 0))
    for request, length in enumerate(asked.lengths):
        first = max(length - 2 - 20, 0)
        asked.k[request, :first] = asked.v[request, :first] = torch.nan
    known = replace(asked, k=asked.k.nan_to_num(0), v=asked.v.nan_to_num(0))
    for page_size in (1, 5):
        placed = in_pages(asked, page_size)
        assert placed.block_table is not None
        for request, length in enumerate(asked.lengths):
            placed.block_table[request, : max(length - 2 - 20, 0) // page_size] = WILD
        assert_near_truth(run(PLAIN, asked, window, placed), known, window)


def entries_of(asked: Requests, order: list[int]) -> Placed:
    """Returns a cache in which each request has a slot of a larger cache; the other slots are
    NaN."""
    shape = (max(order) + 2, *asked.k.shape[1:3])
    k = asked.k.new_full((*shape, asked.k.shape[3]), torch.nan)
    v = asked.v.new_full((*shape, asked.v.shape[3]), torch.nan)
    idx = torch.tensor(order, dtype=torch.int32)
    k[idx], v[idx] = asked.k, asked.v
    return Placed(k, v, asked.seqlens, batch_idx=idx)


def test_requests_may_be_in_any_entries() -> None:
    asked = requests(PLAIN, (70, 0, 16, 5))
    found = run(PLAIN, asked)
    assert_same_bits(found, run(PLAIN, asked, placed=entries_of(asked, [4, 0, 2, 3])))


def test_rows_before_the_first_key_are_not_read() -> None:
    asked = requests(PLAIN, (70, 0, 16, 5, 33), n_q=3)
    pads = (7, 3, 0, 40, 1)
    rows = max(n + pad for n, pad in zip(asked.lengths, pads, strict=True)) + 2
    shape = (5, rows, *asked.k.shape[2:])
    k, v = asked.k.new_full(shape, torch.nan), asked.v.new_full(shape, torch.nan)
    for i, (n, pad) in enumerate(zip(asked.lengths, pads, strict=True)):
        k[i, pad : pad + n], v[i, pad : pad + n] = asked.k[i, :n], asked.v[i, :n]
    padding = torch.tensor(pads, dtype=torch.int32)
    whole = Placed(k, v, asked.seqlens + padding, leftpad=padding)
    found = assert_right(PLAIN, asked, Semantics(causal=True))
    assert_same_bits(found, run(PLAIN, asked, Semantics(causal=True), whole))
    paged = in_pages(Requests(asked.q, k, v, tuple((asked.seqlens + padding).tolist())), 9)
    paged = replace(paged, leftpad=padding)
    assert_same_bits(found, run(PLAIN, asked, Semantics(causal=True), paged))


def test_k_and_v_may_have_strides_of_their_own() -> None:
    """K and V are parts of one tensor of pages, have heads first, or have rows with padding."""
    asked = requests(PLAIN, (70, 16, 33))
    found = run(PLAIN, asked)
    both = torch.stack([asked.k, asked.v], dim=1)
    sliced = Placed(both[:, 0], both[:, 1], asked.seqlens)
    assert_same_bits(found, run(PLAIN, asked, placed=sliced))
    by_head = asked.k.transpose(1, 2).contiguous().transpose(1, 2)
    wide = torch.cat([asked.v, asked.v], dim=-1)[..., : asked.v.shape[-1]]
    assert wide.stride() != by_head.stride()
    assert_same_bits(found, run(PLAIN, asked, placed=Placed(by_head, wide, asked.seqlens)))
    assert_same_bits(
        found,
        run(PLAIN, asked, placed=Placed(wide * 0 + asked.k, by_head * 0 + asked.v, asked.seqlens)),
    )


@pytest.mark.parametrize("dim", [0, 1, 2], ids=["entry", "row", "head"])
def test_offsets_may_pass_what_32_bits_count(dim: int) -> None:
    asked = requests(PLAIN, (35, 20), behind=0)
    placed = in_pages(asked, 5)
    shape = placed.k.shape
    strides, step = [0, 0, 0, 1], shape[3]
    for i in (2, 1, 0):
        if i != dim:
            strides[i], step = step, step * shape[i]
    strides[dim] = (1 << 31) // (shape[dim] - 1) // 8 * 8 + 8
    memory = untouched((shape[dim] - 1) * strides[dim] + 2 * step, placed.k.dtype)
    k, v = (memory[i * step :].as_strided(shape, strides) for i in range(2))
    k.copy_(placed.k)
    v.copy_(placed.v)
    assert (shape[dim] - 1) * strides[dim] > 1 << 31
    assert_same_bits(
        run(PLAIN, asked, placed=placed), run(PLAIN, asked, placed=replace(placed, k=k, v=v))
    )


def test_without_lengths_all_rows_are_keys() -> None:
    asked = requests(PLAIN, (45, 45), behind=0)
    assert_same_bits(run(PLAIN, asked), run(PLAIN, asked, placed=Placed(asked.k, asked.v, None)))
    asked = requests(PLAIN, (48, 48), behind=0)
    placed = replace(in_pages(asked, 16), seqlens=None)
    assert placed.block_table is not None
    placed = replace(placed, block_table=placed.block_table[:, :3])
    assert_same_bits(run(PLAIN, asked), run(PLAIN, asked, placed=placed))


@pytest.mark.parametrize("page", [WILD, -1, 1 << 30])
def test_a_page_that_is_nowhere_is_never_read(page: int) -> None:
    """The call returns a result; the emulator would report an access outside of the cache."""
    asked = requests(PLAIN, (70, 33))
    placed = in_pages(asked, 16)
    assert placed.block_table is not None
    good = run(PLAIN, asked, placed=placed)
    placed.block_table[0, 1] = page
    found = run(PLAIN, asked, placed=placed)
    assert found[0].isfinite().all()
    assert torch.equal(found[0][1], good[0][1])
    n_pages = placed.k.shape[0]
    placed.block_table[0, 1] = n_pages
    assert torch.equal(run(PLAIN, asked, placed=placed)[0], found[0])


@pytest.mark.parametrize("entry", [-1, 3, 1 << 30])
def test_an_entry_that_is_nowhere_is_never_read(entry: int) -> None:
    asked = requests(PLAIN, (70, 33, 2))
    placed = replace(in_slots(asked), batch_idx=torch.tensor([0, entry, 2], dtype=torch.int32))
    found = run(PLAIN, asked, placed=placed)
    good = run(PLAIN, asked)
    assert found[0].isfinite().all()
    assert torch.equal(found[0][::2], good[0][::2])


@pytest.mark.parametrize("length", [-1, 76, 1 << 30])
def test_a_wild_length_is_cut_to_the_rows_there_are(length: int) -> None:
    asked = requests(PLAIN, (70, 33), behind=0)
    placed = in_slots(asked)
    wild = replace(placed, seqlens=torch.tensor([length, 33], dtype=torch.int32))
    cut = replace(placed, seqlens=torch.tensor([min(max(length, 0), 70), 33], dtype=torch.int32))
    assert_same_bits(run(PLAIN, asked, placed=wild), run(PLAIN, asked, placed=cut))
