"""The page numbers of every request are checked where it has keys."""

from __future__ import annotations

import pytest
import torch

from flashsmith.ops.kv_cache import check_pages

PAGES = torch.zeros(2, 16, 1, 8)


def ints(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def test_requests_without_keys_hide_none_behind_them() -> None:
    check_pages("k_cache", PAGES, ints([0], [1]), [(0, 0), (0, 16)])
    with pytest.raises(ValueError, match=r"page 2 for request 1; expected 0 to 1, .* of k_cache"):
        check_pages("k_cache", PAGES, ints([0], [2]), [(0, 0), (0, 16)])


@pytest.mark.parametrize(("first", "end"), [(0, 17), (16, 17), (15, 32), (31, 32)])
def test_pages_that_hold_a_key_are_looked_at_and_no_others(first: int, end: int) -> None:
    begin, last = first // 16, (end - 1) // 16
    for page in range(4):
        table = ints([0, 0, 0, 0])
        table[0, page] = -1
        if begin <= page <= last:
            with pytest.raises(ValueError, match="page -1 for request 0"):
                check_pages("k", PAGES, table, [(first, end)])
        else:
            check_pages("k", PAGES, table, [(first, end)])
