"""Per-token scales of an FP8 KV cache, which lie beside the rows of the cache."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import DecodeKernelConfig, parse_kernel_name_into_config
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.dtype import DType
from flashsmith.reference import Semantics
from support.decoding import (
    PLAIN,
    Placed,
    Scales,
    assert_near_truth,
    assert_same_bits,
    in_pages,
    in_slots,
    launch_on,
    requests,
)
from support.fp8_caches import FP8, LARGEST, Quantised, quantised, spread

HEURISTICS = [
    DECODE.families[0].heuristic(
        DecodeWorkload(dtype, d_head, fp8_cache=True, per_token_scale=True)
    )
    for d_head, dtype in (
        (64, DType.BF16), (96, DType.FP16), (128, DType.BF16), (192, DType.FP16), (256, DType.BF16),
    )
]  # fmt: skip
SLICES_OF_16 = parse_kernel_name_into_config(
    "(FP16, 64, 16, 16, 4): decode+fp8_cache+per_token_scale+stages_3+blocks_1"
)
SMALL = HEURISTICS[0]


def tokens(cfg: DecodeKernelConfig = SMALL, *args: Any, **keywords: Any) -> Quantised:
    """Returns FP8 requests with per-token scales, which are NaN behind a request's last row."""
    return Quantised(cfg, *args, per="token", **keywords)


def with_scales(asked: Quantised, k_scale: Any, v_scale: Any) -> Quantised:
    """Returns the same bytes, which stand for other numbers."""
    k, v = asked.k.double() * spread(k_scale), asked.v.double() * spread(v_scale)
    asked.k_scale, asked.v_scale, asked.exact = k_scale, v_scale, replace(asked.exact, k=k, v=v)
    return asked


def paged(asked: Quantised, page_size: int, seed: int = 0) -> tuple[Placed, Scales]:
    """Returns pages of the bytes and of the scales, with NaN wherever no request has a key."""
    placed = in_pages(asked.stored, page_size, seed)
    assert asked.k_scale is not None and asked.v_scale is not None
    beside = replace(asked.exact, k=asked.k_scale[..., None], v=asked.v_scale[..., None])
    scales = in_pages(beside, page_size, seed)
    assert scales.k.isnan().any()
    return placed, (scales.k[..., 0], scales.v[..., 0])


@pytest.mark.parametrize("cfg", [*HEURISTICS, SLICES_OF_16], ids=str)
def test_lengths_around_every_tile_boundary_are_right(cfg: DecodeKernelConfig) -> None:
    tokens(cfg).assert_right(cfg)


@pytest.mark.parametrize("splits", [0, 3])
@pytest.mark.parametrize(
    "semantics",
    [
        Semantics(softcap=1.5, causal=True),
        Semantics(alibi_slopes=torch.rand(6), sinks=torch.linspace(-3, 6, 6)),
        Semantics(window_size=(33, 0), softmax_scale=0.7),
    ],
    ids=["softcap", "alibi and sinks", "window"],
)
def test_scores_are_scaled_before_anything_else(semantics: Semantics, splits: int) -> None:
    tokens(SMALL, (70, 1, 0, 33, 300), 2, (6, 3)).assert_right(SMALL, semantics, splits=splits)


@pytest.mark.parametrize("page_size", [1, 3, 16, 100])
def test_pages_of_any_size_and_order_have_the_bits_of_whole_entries(page_size: int) -> None:
    asked = tokens(n_q=2)
    found = asked.assert_right(SMALL, splits=2)
    for seed in range(2):
        placed, scales = paged(asked, page_size, seed)
        again = launch_on(SMALL, asked.exact.q, placed, splits=2, scales=scales)
        assert_same_bits(found, again)


def test_scales_of_pages_that_are_nowhere_are_not_read() -> None:
    """The keys on pages that do not exist are taken for zeros."""
    asked = tokens(SMALL, (70, 33))
    placed, scales = paged(asked, 16)
    assert placed.block_table is not None
    good = launch_on(SMALL, asked.exact.q, placed, scales=scales)
    placed.block_table[0, 1], placed.block_table[0, 2] = 1 << 30, -1
    found = launch_on(SMALL, asked.exact.q, placed, scales=scales)
    asked.exact.k[0, 16:48] = asked.exact.v[0, 16:48] = 0
    assert_near_truth(found, asked.exact)
    assert torch.equal(found[0][1], good[0][1])
    placed.block_table[0] = 1 << 30
    o, lse = launch_on(SMALL, asked.exact.q, placed, scales=scales)
    assert not o[0].any()
    assert (lse[0] - math.log(70)).abs().max() < 1e-5


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("span", [(-20, 20), (-60, -55), (55, 60)], ids=str)
def test_scales_of_values_may_lie_far_apart(span: tuple[int, int], splits: int) -> None:
    """The scales are such that BF16 can hold the results."""
    asked = tokens(SMALL, (70, 1, 300), 2)
    rows = asked.k_scale.shape
    k_scale = torch.exp2(torch.randint(-20, -6, rows).float())
    v_scale = torch.exp2(torch.randint(*span, rows).float())
    for request, length in enumerate(asked.exact.lengths):
        k_scale[request, length:] = torch.nan
        v_scale[request, length:] = torch.inf
    with_scales(asked, k_scale, v_scale).assert_right(SMALL, splits=splits)


@pytest.mark.parametrize("flipped", [False, True])
def test_a_small_weight_of_a_large_value_counts_as_much_as_a_large_one_of_a_small(
    flipped: bool,
) -> None:
    """e^-28 is about 2^-40, so the keys that come last may have to move the sums to another
    reference."""
    q = torch.zeros(1, 1, 2, 64).bfloat16()
    q[..., 5] = 1
    k = torch.zeros(1, 300, 1, 64)
    k[:, 150:] = -28
    scale = torch.full((1, 300, 1), 2.0**-20)
    scale[:, 150:] = 2.0**20
    v = torch.randn(1, 300, 1, 64)
    if flipped:
        k, v, scale = (t.flip(1) for t in (k, v, scale))
    asked = requests(SMALL, (300,), heads=(2, 1), behind=0)
    small = quantised(k, None), quantised(v, None)
    exact = replace(asked, q=q, k=small[0].double(), v=small[1].double() * scale[..., None])
    semantics = Semantics(softmax_scale=1.0)
    for splits in (1, 4):
        placed = in_slots(replace(exact, k=small[0], v=small[1]))
        found = launch_on(SMALL, q, placed, semantics, splits, scales=(None, scale))
        assert_near_truth(found, exact, semantics)
        assert found[0].abs().min() > 0


def test_scales_of_zero_are_scales() -> None:
    asked = tokens(SMALL, (70, 33))
    k_scale, v_scale = asked.k_scale.clone(), asked.v_scale.clone()
    k_scale[:, 3:40], v_scale[:, 20:60], v_scale[1] = 0, 0, 0
    found = with_scales(asked, k_scale, v_scale).assert_right(SMALL)
    assert not found[0][1].any()


@pytest.mark.parametrize(
    "other",
    [None, torch.tensor([0.5]), torch.tensor([0.5, 3.0]), torch.linspace(1, 2, 6).view(3, 2)],
    ids=["none", "tensor", "head", "request"],
)
def test_one_of_both_may_be_of_more_than_a_token(other: torch.Tensor | None) -> None:
    asked = tokens(SMALL, (70, 1, 33))
    k_scale, v_scale = asked.k_scale, asked.v_scale
    with_scales(asked, k_scale, other).assert_right(SMALL)
    with_scales(asked, other, v_scale).assert_right(SMALL, splits=2)


def test_scales_may_have_strides_of_their_own() -> None:
    asked = tokens(SMALL, (70, 16, 33))
    found = asked.run(SMALL)
    both = torch.stack([asked.k_scale, asked.v_scale], 1)
    asked.k_scale = both[:, 0]
    asked.v_scale = both[:, 1].transpose(1, 2).contiguous().transpose(1, 2)
    assert not asked.k_scale.is_contiguous() and not asked.v_scale.is_contiguous()
    assert_same_bits(found, asked.run(SMALL))


def test_the_order_of_warps_makes_no_difference() -> None:
    asked = tokens(n_q=2)
    found = asked.run(SMALL, seed=1)
    for seed in range(2, 4):
        assert_same_bits(found, asked.run(SMALL, seed=seed, workers=1 + seed % 2))


def call(asked: Quantised, **changed: Any) -> Any:
    given = {
        "q": asked.exact.q, "k_cache": asked.k, "v_cache": asked.v, "k_scale": asked.k_scale,
        "v_scale": asked.v_scale, "cache_seqlens": asked.exact.seqlens,
    }  # fmt: skip
    return flashsmith.decode(changed.pop("cfg", None), **(given | changed), return_lse=True)


def test_calls_with_other_scales_are_told_apart() -> None:
    asked, wider = tokens(SMALL, (70, 33)), Quantised(SMALL, (70, 33), per="request")
    for _ in range(2):
        assert_near_truth(call(asked), asked.exact)
        assert_near_truth(call(wider), wider.exact)
        asked = with_scales(asked, asked.k_scale * 1.5, asked.v_scale * 0.5)


def test_new_rows_are_divided_by_the_scales_that_stand_beside_them() -> None:
    asked = tokens(SMALL, (20, 3))
    lengths = asked.exact.seqlens
    n_new, batch = 2, torch.arange(2)[:, None]
    places = lengths.long()[:, None] + torch.arange(n_new)
    k_new, v_new = torch.randn(2, 2, n_new, 2, 64).bfloat16()
    asked.k_scale[batch, places] = torch.rand(2, n_new, 2) + 0.01
    asked.v_scale[batch, places] = torch.rand(2, n_new, 2) + 0.01
    placed, scales = paged(replace_lengths(asked, tuple(n + n_new for n in asked.exact.lengths)), 3)
    k, v = asked.k.clone(), asked.v.clone()
    in_rows = call(asked, k_cache=k, v_cache=v, k_new=k_new, v_new=v_new)
    for cache, new, scale in ((k, k_new, asked.k_scale), (v, v_new, asked.v_scale)):
        divided = new.float() / scale[batch, places][..., None]
        expected = divided.clamp(-LARGEST, LARGEST).to(FP8)
        assert torch.equal(cache[batch, places].float(), expected.float())
    found = call(
        asked, k_cache=placed.k, v_cache=placed.v, k_scale=scales[0], v_scale=scales[1],
        block_table=placed.block_table, k_new=k_new, v_new=v_new,
    )  # fmt: skip
    assert_same_bits(in_rows, found)


def test_a_kernel_for_other_scales_appends_nothing() -> None:
    asked = tokens(SMALL, (70, 33))
    new = {name: torch.randn(2, 1, 2, 64).bfloat16() for name in ("k_new", "v_new")}
    caches = []
    for scale in (torch.full((2,), 0.3), torch.full_like(asked.k_scale, 0.3)) * 2:
        k, v = asked.k.clone(), asked.v.clone()
        call(asked, k_cache=k, v_cache=v, k_scale=scale, v_scale=scale, **new)
        caches.append(k.view(torch.uint8))
    assert all(torch.equal(cache, caches[0]) for cache in caches)


def replace_lengths(asked: Quantised, lengths: tuple[int, ...]) -> Quantised:
    longer = object.__new__(Quantised)
    longer.__dict__ |= asked.__dict__ | {"exact": replace(asked.exact, lengths=lengths)}
    return longer


@pytest.mark.parametrize(
    "changed, error, words",
    [
        (lambda a: {"k_scale": a.k_scale[:, :-1]}, ValueError, r"k_scale has shape \(2, 24, 2\);"),
        (lambda a: {"v_scale": a.v_scale[:1]}, ValueError, r"v_scale has shape \(1, 25, 2\)"),
        (lambda a: {"v_scale": a.v_scale[..., :1]}, ValueError, r"v_scale has shape \(2, 25, 1\)"),
        (lambda a: {"k_scale": a.k_scale.half()}, TypeError, "k_scale has dtype"),
        (
            lambda a: {"cfg": replace(SMALL, per_token_scale=False)},
            ValueError,
            "k_scale has shape .* a scale for each row, but the configuration has no such scales",
        ),
        (
            lambda a: {"k_cache": a.exact.k.bfloat16(), "v_cache": a.exact.v.bfloat16()},
            ValueError,
            "k_scale was passed, but the cache has 16 bits",
        ),
    ],
)
def test_bad_input_is_refused_in_words(changed: Any, error: type[Exception], words: str) -> None:
    asked = tokens(SMALL, (20, 3))
    with pytest.raises(error, match=words):
        call(asked, **changed(asked))


def test_scales_without_numbers_of_8_bits_are_no_configuration() -> None:
    (problem,) = replace(PLAIN, per_token_scale=True).problems()
    assert problem.startswith("per_token_scale is on without fp8_cache; keys and values of 16 bits")
    (problem,) = replace(SMALL, B_r=32).problems()
    assert problem.startswith("B_r is 32 with per_token_scale")
    assert all(not cfg.problems() for cfg in HEURISTICS)
