"""Windows of about as many keys as a cache has rows: the keys they hide, and the positions by which
queries are rotated."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import flashsmith
from flashsmith.reference import Semantics
from support.decoding import PLAIN, assert_near_truth, in_pages, in_slots, requests
from support.new_keys import angles, before, turned

ROWS, QUERIES, HALF = 40, 4, 8
# These sides are near the bounds from which a side hides nothing, or is no window at all.
SIDES = (-1, 0, QUERIES - 2, QUERIES - 1, QUERIES, ROWS - 2, ROWS - 1, ROWS, ROWS + 1)


@pytest.mark.parametrize("page_size", [None, 8])
@pytest.mark.parametrize("queries", [1, QUERIES])
@pytest.mark.parametrize("left", [0, 1, 30, ROWS - 3, ROWS - 2, ROWS - 1, ROWS])
def test_a_window_hides_all_keys_before_it(left: int, queries: int, page_size: int | None) -> None:
    """The window may also hide the first key alone, of a request that fills its rows."""
    asked = requests(PLAIN, (ROWS, ROWS - 1, 3), n_q=queries, behind=0)
    placed = in_slots(asked) if page_size is None else in_pages(asked, page_size)
    for right in (-1, 0, queries - 1):
        found = flashsmith.decode(
            None, asked.q, placed.k, placed.v, cache_seqlens=placed.seqlens,
            block_table=placed.block_table, window_size=(left, right), return_lse=True,
        )  # fmt: skip
        assert_near_truth(found, asked, Semantics(window_size=(left, right)))


@pytest.mark.parametrize("right", [-1, 0])
@pytest.mark.parametrize("queries", [2, 3])
def test_a_window_begins_at_every_distance_from_a_slice(queries: int, right: int) -> None:
    """The last query alone does not see the first key of a slice that begins one key before its
    window. It has one row of the tile, because each query has one head."""
    lengths = range(70, 70 + 2 * PLAIN.B_c)
    asked = requests(PLAIN, lengths, n_q=queries, heads=(1, 1), behind=0)
    placed = in_slots(asked)
    for left in (20, 41):
        found = flashsmith.decode(
            None, asked.q, placed.k, placed.v, cache_seqlens=placed.seqlens,
            window_size=(left, right), splits=1, return_lse=True,
        )  # fmt: skip
        assert_near_truth(found, asked, Semantics(window_size=(left, right)))


def first_key_seen(left: int) -> int:
    """Returns the index of the first key that the query of a full request sees; a key's value is
    its index."""
    asked = requests(PLAIN, (ROWS,), behind=0)
    v = torch.arange(ROWS).to(asked.v).view(1, ROWS, 1, 1).expand_as(asked.v).contiguous()
    seen = flashsmith.decode(
        None, torch.zeros_like(asked.q), asked.k, v, window_size=(left, -1)
    ).float()
    assert (seen == seen.flatten()[0]).all()
    return round(2 * seen.flatten()[0].item()) - (ROWS - 1)  # the mean of first to last


@pytest.mark.parametrize("left", [0, ROWS - 3, ROWS - 2, ROWS - 1, ROWS])
def test_the_first_key_seen_is_the_windows(left: int) -> None:
    assert first_key_seen(left) == max(ROWS - 1 - left, 0)


@pytest.mark.parametrize("page_size", [None, 8], ids=["entries", "pages"])
@pytest.mark.parametrize("causal", [False, True])
def test_queries_are_turned_one_by_one_if_there_is_a_mask_as_the_caller_says(
    causal: bool, page_size: int | None
) -> None:
    """Any causal mask or window counts, whether or not it hides a key of this call; a side as long
    as the cache is no window."""
    asked = requests(PLAIN, (ROWS, ROWS - 5), n_q=QUERIES, behind=0)
    old, k_new, v_new = before(asked, QUERIES)
    cos, sin = angles(ROWS, HALF)
    first = old.seqlens.long()[:, None]
    places, requests_of = first + torch.arange(QUERIES), torch.arange(2)[:, None]
    k = asked.k.clone()
    k[requests_of, places] = turned(k_new, cos, sin, places, True)
    placed = in_slots(old) if page_size is None else in_pages(asked, page_size)
    table = None if placed.block_table is None else placed.block_table[:, :-1]  # ROWS rows
    for side in SIDES:
        for sides in ((side, -1), (-1, side), (side, side), (ROWS, side)):
            one_by_one = causal or any(0 <= one < ROWS for one in sides)
            along = torch.arange(QUERIES) if one_by_one else torch.zeros(QUERIES, dtype=torch.long)
            q = turned(asked.q, cos, sin, first + along, True)
            found = flashsmith.decode(
                None, asked.q, placed.k, placed.v, cache_seqlens=old.seqlens,
                block_table=table, k_new=k_new, v_new=v_new, rotary_cos=cos,
                rotary_sin=sin, causal=causal, window_size=sides, return_lse=True,
            )  # fmt: skip
            right = 0 if causal else sides[1]
            meant = Semantics(causal=causal, window_size=(sides[0], right))
            assert_near_truth(found, replace(asked, q=q, k=k), meant)
