"""Decode kernels agree with the float64 reference, whatever the lengths, heads and semantics."""

from __future__ import annotations

import pytest
import torch

from flashsmith.configs import DecodeKernelConfig
from flashsmith.reference import Semantics
from support.decoding import (
    CONFIGS,
    PLAIN,
    assert_bits_are_of_each_request,
    assert_right,
    assert_same_bits,
    requests,
    run,
)


@pytest.mark.parametrize("cfg", CONFIGS, ids=str)
def test_lengths_around_every_tile_boundary_are_right(cfg: DecodeKernelConfig) -> None:
    assert_right(cfg, requests(cfg))


@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (8, 2), (16, 2), (20, 1), (12, 4)], ids=str)
def test_heads_of_q_share_those_of_the_cache(heads: tuple[int, int]) -> None:
    assert_right(PLAIN, requests(PLAIN, (1, 17, 90), heads=heads))


@pytest.mark.parametrize("n_q", [2, 5, 17])
def test_several_queries_see_the_keys_before_them(n_q: int) -> None:
    asked = requests(PLAIN, n_q=n_q)
    assert_right(PLAIN, asked)
    assert_right(PLAIN, asked, Semantics(causal=True))


@pytest.mark.parametrize("window", [(0, -1), (15, 0), (16, 0), (40, 2), (-1, 1), (200, 0)], ids=str)
def test_windows_hide_what_lies_before_and_ahead(window: tuple[int, int]) -> None:
    asked = requests(PLAIN, n_q=3)
    assert_right(PLAIN, asked, Semantics(window_size=window))


@pytest.mark.parametrize("splits", [1, 2, 3, 7, 1024])
def test_any_number_of_splits_is_right(splits: int) -> None:
    asked = requests(PLAIN, n_q=5)
    assert_right(PLAIN, asked, Semantics(causal=True), splits=splits)


def semantics_of(n_heads: int, batch: int) -> dict[str, Semantics]:
    slopes = torch.rand(n_heads)
    return {
        "scale": Semantics(softmax_scale=0.7),
        "softcap": Semantics(softcap=1.5, causal=True),
        "alibi": Semantics(alibi_slopes=slopes, causal=True),
        "alibi of each request": Semantics(alibi_slopes=torch.rand(batch, n_heads)),
        "sinks": Semantics(sinks=torch.linspace(-3, 6, n_heads)),
        "all": Semantics(
            causal=True, window_size=(33, 0), softcap=2.0, alibi_slopes=slopes,
            sinks=torch.linspace(-3, 6, n_heads),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", semantics_of(1, 1))
def test_scores_are_changed_as_asked_for(name: str) -> None:
    """Packed GQA rows have the slopes and sinks of their own heads."""
    asked = requests(PLAIN, n_q=3, heads=(6, 2))
    semantics = semantics_of(6, len(asked.lengths))[name]
    found = assert_right(PLAIN, asked, semantics)
    assert_right(PLAIN, asked, semantics, splits=3)
    assert not torch.equal(found[0], run(PLAIN, asked)[0])


def test_rows_may_be_shorter_than_the_kernels() -> None:
    for d_head, d_v in ((40, 64), (64, 24), (56, 56)):
        assert_right(PLAIN, requests(PLAIN, n_q=2, d_head=d_head, d_v=d_v), splits=2)
        assert_right(PLAIN, requests(PLAIN, n_q=2, d_head=d_head, d_v=d_v))


def test_the_order_of_warps_makes_no_difference() -> None:
    asked = requests(PLAIN, n_q=2)
    found = run(PLAIN, asked, seed=1)
    for seed in range(2, 6):
        assert_same_bits(found, run(PLAIN, asked, seed=seed, workers=1 + seed % 2))


def test_a_request_with_fixed_splits_does_not_depend_on_the_others() -> None:
    assert_bits_are_of_each_request(PLAIN, requests(PLAIN, n_q=2), splits=3)
