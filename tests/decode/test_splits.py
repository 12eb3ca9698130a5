"""Split-KV: any schedule gives the right result, and the same schedule gives the same bits."""

from __future__ import annotations

import pytest

from flashsmith.configs import DecodeKernelConfig
from support.decoding import PLAIN, VARIED, assert_right, requests


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
    ],
    ids=lambda lengths: f"{len(lengths)} requests, {sum(lengths)} keys",
)
@pytest.mark.parametrize("cfg", [PLAIN, VARIED[1]], ids=str)
def test_any_lengths_are_shared_out_among_blocks(
    cfg: DecodeKernelConfig, lengths: list[int]
) -> None:
    assert_right(cfg, requests(cfg, lengths, heads=(2, 1)))
