"""Split-KV: any schedule gives the right result, and the same schedule gives the same bits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashsmith.configs import DecodeKernelConfig, KernelId
from flashsmith.jit import Target
from flashsmith.runtime import find_decode
from flashsmith.runtime.emulation import Emulation
from support.decoding import PLAIN, VARIED, WGMMA, assert_right, in_slots, plan_of, requests


@pytest.mark.parametrize(
    "lengths",
    [
        [1000],  # all thread blocks share one work tile
        [700, 3, 3, 3, 3, 3, 3, 3],
        [3, 3, 3, 700],
        [0] * 33,
        [*([1] * 31), 200, 1, 200],  # more requests than lanes
        [64 * i for i in range(1, 9)],
        [1] * 40,
        [*([3] * 15), 6000],  # more work tiles than resident blocks, and stream-K
        [*([70] * 12), 6000, 70],
    ],
    ids=lambda lengths: f"{len(lengths)} requests, {sum(lengths)} keys",
)
@pytest.mark.parametrize("cfg", [PLAIN, VARIED[1]], ids=str)
def test_any_lengths_are_shared_out_among_blocks(
    cfg: DecodeKernelConfig, lengths: list[int]
) -> None:
    assert_right(cfg, requests(cfg, lengths, heads=(2, 1)))


def blocks_and_slots(
    n_requests: int, rows: int, splits: int = 0, *, full: bool = False
) -> tuple[int, int]:
    """Returns the thread blocks of a plan, and the partial results for which it has memory.

    full: Whether requests have no lengths.
    """
    asked = requests(PLAIN, (rows,) * n_requests, heads=(2, 1), behind=0)
    plan = plan_of(PLAIN, asked, splits, full=full)
    return plan.launches[0].grid[0], plan.workspace_bytes // (PLAIN.B_r * (PLAIN.d_head + 2) * 4)


def test_a_block_takes_one_split() -> None:
    """The emulator has four SMs with places for eight blocks; a KV step has 128 keys."""
    assert (PLAIN.B_c * PLAIN.n_warps, PLAIN.blocks_per_SM) == (128, 2)
    assert blocks_and_slots(5, 5120, splits=3) == (15, 15)
    assert blocks_and_slots(5, 5120, splits=1) == (5, 0)
    assert blocks_and_slots(31, 900) == (31, 0), "nobody reads the lengths of short requests"
    assert blocks_and_slots(31, 5120) == (31, 16), "stream-K would have eight work ranges"
    assert blocks_and_slots(3, 5120) == (4, 8), "one split, or a work range for each SM"
    assert blocks_and_slots(2, 5120) == (8, 16), "four splits of each fill all places"
    assert blocks_and_slots(2, 1536) == (6, 6), "no split has fewer than four KV steps"
    assert blocks_and_slots(1, 5120) == (4, 4), "one work tile for four SMs is few"
    assert blocks_and_slots(1, 12800) == (8, 8), "several splits on an SM, as they are long"


def test_requests_without_lengths_have_equal_splits_where_these_are_no_longer() -> None:
    """The host knows the lengths then, so that no block reads them, or is there for stream-K."""
    for n in (3, 4, 7, 31):
        assert blocks_and_slots(n, 5120, full=True) == (n, 0)
        assert blocks_and_slots(n, 5120)[1] > 0
    for n in (5, 33):  # so few work tiles in the last round that stream-K may be shorter
        assert blocks_and_slots(n, 5120, full=True) == blocks_and_slots(n, 5120)


@pytest.mark.parametrize("cfg", [PLAIN, WGMMA[1]], ids=str)
@pytest.mark.parametrize("n_requests", [1, 3, 4, 7, 33])
def test_requests_without_lengths_are_right(cfg: DecodeKernelConfig, n_requests: int) -> None:
    for rows in (1, 5 * cfg.B_c, 1300):
        asked = requests(cfg, (rows,) * n_requests, heads=(2, 1), behind=0)
        assert_right(cfg, asked, placed=replace(in_slots(asked), seqlens=None))


def test_splits_that_the_caller_counts_may_be_short() -> None:
    """The emulator sees a partial result of each; the own choice has two KV steps a split."""
    asked = requests(PLAIN, (8 * 128,), heads=(2, 1), behind=0)
    kernel = Emulation(find_decode(KernelId(PLAIN), Target.emulator()))

    def stored(splits: int) -> int:
        assert_right(PLAIN, asked, splits=splits)
        return kernel.counters()["global_store_bytes"]

    partial = 2 * (PLAIN.d_head + 2) * 4  # of two rows
    assert stored(8) - stored(4) == 4 * partial
