"""FP8 KV caches: keys and values are exact in the products, and scaled by head or request."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import DecodeKernelConfig, parse_kernel_name_into_config
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import D_HEADS, DecodeWorkload
from flashsmith.dtype import DType
from flashsmith.reference import Semantics
from support.decoding import (
    LENGTHS,
    PLAIN,
    Placed,
    assert_near_truth,
    assert_same_bits,
    in_pages,
    requests,
)
from support.fp8_caches import FP8, SMALL, Quantised

HEURISTICS = [
    family.heuristic(DecodeWorkload(dtype, d_head, fp8_cache=True))
    for family in DECODE.families
    for d_head in D_HEADS
    for dtype in DType
    if family.is_for(DecodeWorkload(dtype, d_head, fp8_cache=True))
]
# No heuristic chooses these configurations.
VARIED = [
    parse_kernel_name_into_config(name)
    for name in (
        "(BF16, 64, 16, 16, 4): decode+fp8_cache+stages_3+blocks_1",
        "(FP16, 96, 16, 32, 8): decode+fp8_cache+stages_2+blocks_1",
        "(BF16, 128, 16, 16, 2): decode+fp8_cache+stages_8+blocks_2",
        "(FP16, 256, 16, 16, 2): decode+fp8_cache+stages_3+blocks_2",
    )
]


@pytest.mark.parametrize("cfg", [*HEURISTICS, *VARIED], ids=str)
def test_lengths_around_every_tile_boundary_are_right(cfg: DecodeKernelConfig) -> None:
    Quantised(cfg).assert_right(cfg)


@pytest.mark.parametrize("d_head, rows", [(64, 64), (96, 32), (256, 64)])
def test_teams_of_warps_share_keys_of_8_bits(d_head: int, rows: int) -> None:
    cfg = DECODE.families[0].heuristic(DecodeWorkload(DType.BF16, d_head, rows, fp8_cache=True))
    assert cfg.B_r == rows
    asked = Quantised(cfg, (33, 0, 90, 1), n_q=rows // 2 + 1, heads=(4, 2))
    placed = in_pages(asked.stored, 16)
    asked.assert_right(cfg, Semantics(causal=True), placed)
    asked.assert_right(cfg, placed=placed, splits=2)


@pytest.mark.parametrize("per", ["tensor", "head", "request", "none"])
@pytest.mark.parametrize("splits", [0, 3])
def test_scales_are_of_all_of_a_head_or_of_a_request_too(per: str, splits: int) -> None:
    asked = Quantised(SMALL, LENGTHS, 2, (6, 3), per=per)
    asked.assert_right(SMALL, splits=splits)
    for semantics in (
        Semantics(softcap=1.5, causal=True),
        Semantics(alibi_slopes=torch.rand(6), sinks=torch.linspace(-3, 6, 6)),
        Semantics(window_size=(33, 0), softmax_scale=0.7),
    ):
        asked.assert_right(SMALL, semantics, splits=splits)


@pytest.mark.parametrize("heads", [(1, 1), (8, 2), (20, 1), (12, 4)], ids=str)
def test_heads_of_q_share_those_of_the_cache(heads: tuple[int, int]) -> None:
    Quantised(SMALL, (1, 17, 90), heads=heads).assert_right(SMALL)


@pytest.mark.parametrize("page_size", [1, 3, 16, 64, 100, 256])
def test_pages_of_any_size_and_order_have_the_bits_of_whole_entries(page_size: int) -> None:
    """Bytes that no request uses are NaN."""
    asked = Quantised(SMALL, n_q=2)
    found = asked.assert_right(SMALL, splits=2)
    for seed in range(2):
        placed = in_pages(asked.stored, page_size, seed)
        assert placed.k.dtype == FP8
        assert placed.k.isnan().any()
        assert_same_bits(found, asked.run(SMALL, placed, splits=2))


def test_k_and_v_may_have_strides_of_their_own() -> None:
    asked = Quantised(SMALL, (70, 16, 33))
    found = asked.run(SMALL)
    both = torch.stack([asked.k, asked.v], dim=1)
    assert_same_bits(found, asked.run(SMALL, Placed(both[:, 0], both[:, 1], asked.exact.seqlens)))
    by_head = asked.k.transpose(1, 2).contiguous().transpose(1, 2)
    wide = torch.cat([asked.v, asked.v], dim=-1)[..., : asked.v.shape[-1]]
    assert_same_bits(found, asked.run(SMALL, Placed(by_head, wide, asked.exact.seqlens)))


@pytest.mark.parametrize("rows", [(48, 64), (64, 16), (32, 32)], ids=str)
def test_rows_may_be_shorter_than_the_kernels(rows: tuple[int, int]) -> None:
    asked = Quantised(SMALL, n_q=2, d_head=rows[0], d_v=rows[1])
    asked.assert_right(SMALL, splits=2)
    asked.assert_right(SMALL)
    both = torch.full((*asked.k.shape[:3], 80), math.nan).to(FP8)  # NaN lies behind each row
    k, v = both[..., : rows[0]], both.clone()[..., : rows[1]]
    k.copy_(asked.k)
    v.copy_(asked.v)
    assert_same_bits(asked.run(SMALL), asked.run(SMALL, Placed(k, v, asked.exact.seqlens)))


@pytest.mark.parametrize("dtype", DType, ids=str)
@pytest.mark.parametrize("of", ["k", "v"])
def test_every_byte_is_the_number_it_stands_for(of: str, dtype: DType) -> None:
    """Each of the 256 bytes is a whole key or value; NaN reaches the rows that see it."""
    cfg = SMALL.for_dtype(dtype)
    every = torch.arange(256, dtype=torch.uint8).view(FP8)
    ones = torch.ones(256, 1, 1, 64).to(FP8)
    bytes_of = every[:, None, None, None].expand(256, 1, 1, 64).contiguous()
    q = torch.zeros(256, 1, 1, 64).to(dtype.to_torch_dtype())
    q[..., 5] = 1
    k, v = (bytes_of, ones) if of == "k" else (ones, bytes_of)
    o, lse = flashsmith.decode(cfg, q, k, v, softmax_scale=1.0, return_lse=True)
    expected = every.double()
    found = lse[:, 0, 0].double() if of == "k" else o[:, 0, 0].double()
    expected = expected if of == "k" else expected[:, None].expand_as(found)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, equal_nan=True)


def test_keys_that_are_not_there_count_as_zeros() -> None:
    asked = Quantised(SMALL, (70, 33))
    placed = in_pages(asked.stored, 16)
    assert placed.block_table is not None
    placed.block_table[0, 1] = 1 << 30
    good, found = asked.run(SMALL), asked.run(SMALL, placed)
    assert found[0].isfinite().all()
    assert torch.equal(found[0][1], good[0][1])


EXPONENTS = (0, -100, 20, 7)  # the exponent of two, by head


def test_each_row_of_q_is_scaled_by_its_own_power_of_two() -> None:
    """The scaling to FP16's range and back is exact, whatever the other rows hold."""
    asked = Quantised(SMALL, (40,), heads=(4, 1))
    q = asked.exact.q
    mixed = torch.stack([q[:, :, h] * 2.0**e for h, e in enumerate(EXPONENTS)], dim=2)
    found = call(asked, q=mixed, softmax_scale=0.1)
    plain = call(asked, softmax_scale=0.1)
    for h, exponent in enumerate(EXPONENTS):
        alone = call(asked, q=q * 2.0**exponent, softmax_scale=0.1)
        assert torch.equal(found[0][:, :, h], alone[0][:, :, h])
        same = call(asked, q=q * 2.0**exponent, softmax_scale=0.1 * 2.0**-exponent)
        assert_same_bits(plain, same)
    assert not torch.equal(found[0][:, :, 3], plain[0][:, :, 3])


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
def test_rows_of_q_that_are_not_finite_are_so_alone(odd: float) -> None:
    asked = Quantised(SMALL, (40,), heads=(4, 1))
    plain, q = call(asked), asked.exact.q.clone()
    q[:, :, 1, 3] = odd
    found = call(asked, q=q)
    for h in (0, 2, 3):
        assert torch.equal(found[0][:, :, h], plain[0][:, :, h])
    assert found[0][:, :, 1].isnan().all()


def test_the_order_of_warps_makes_no_difference() -> None:
    asked = Quantised(SMALL, n_q=2)
    found = asked.run(SMALL, seed=1)
    for seed in range(2, 5):
        assert_same_bits(found, asked.run(SMALL, seed=seed, workers=1 + seed % 2))


def call(asked: Quantised, **changed: Any) -> Any:
    given = {
        "q": asked.exact.q, "k_cache": asked.k, "v_cache": asked.v, "k_scale": asked.k_scale,
        "v_scale": asked.v_scale, "cache_seqlens": asked.exact.seqlens,
    }  # fmt: skip
    return flashsmith.decode(None, **(given | changed), return_lse=True)


def test_a_call_made_again_reads_scales_anew() -> None:
    asked = Quantised(SMALL, (70, 33), per="request")
    for _ in range(3):
        assert_near_truth(call(asked), asked.exact)
        asked.k_scale *= 1.5
        asked.v_scale *= 0.5
        asked.exact = replace(asked.exact, k=asked.exact.k * 1.5, v=asked.exact.v * 0.5)


def test_calls_with_other_caches_are_told_apart() -> None:
    asked = Quantised(SMALL, (70, 33), per="head")
    wide = requests(PLAIN, (70, 33))
    for _ in range(2):
        assert_near_truth(call(asked), asked.exact)
        assert_near_truth(
            flashsmith.decode(
                None, wide.q, wide.k, wide.v, cache_seqlens=wide.seqlens, return_lse=True
            ),
            wide,
        )
        found = call(asked, k_scale=None, v_scale=None)
        plain = replace(asked.exact, k=asked.k.double(), v=asked.v.double())
        assert_near_truth(found, plain)


@pytest.mark.parametrize(
    "changed, error, words",
    [
        (lambda a: {"v_cache": a.exact.v.bfloat16()}, TypeError, "v_cache has dtype bfloat16"),
        (lambda a: {"k_cache": a.exact.k.bfloat16()}, TypeError, "float8_e4m3fn"),
        (
            lambda a: {"k_cache": a.k.float().to(torch.float8_e5m2)},
            TypeError,
            "k_cache has dtype float8_e5m2; supported are float16, bfloat16 and float8_e4m3fn",
        ),
        (lambda a: {"k_scale": torch.ones(3)}, ValueError, r"k_scale has shape \(3\)"),
        (lambda a: {"v_scale": torch.ones(2, 2).T[:1]}, ValueError, r"v_scale has shape \(1, 2\)"),
        (lambda a: {"k_scale": torch.ones(2).double()}, TypeError, "k_scale has dtype"),
        (lambda a: {"k_scale": torch.tensor([1.0, -2.0])}, ValueError, "k_scale has -2.0"),
        (lambda a: {"v_scale": torch.tensor([math.nan])}, ValueError, "v_scale has nan"),
        (lambda a: {"k_scale": 2.0}, TypeError, "k_scale is a float"),
        (
            lambda a: {"q": a.exact.q[..., :56], "k_cache": a.k[..., :56]},
            ValueError,
            "q has d_head 56; .* multiples of 16",
        ),
        (lambda a: {"v_cache": a.v[..., :40]}, ValueError, "v_cache has d_v 40; .* of 16"),
        (
            lambda a: {"k_cache": torch.cat([a.k, a.k[..., :8]], -1)[..., :64]},
            ValueError,
            "k_cache has .* multiples of 16 elements",
        ),
    ],
)
def test_bad_input_is_refused_in_words(changed: Any, error: type[Exception], words: str) -> None:
    asked = Quantised(SMALL, (20, 3))
    with pytest.raises(error, match=words):
        call(asked, **changed(asked))


def test_scales_of_a_cache_of_16_bits_are_refused() -> None:
    asked = requests(PLAIN, (20, 3))
    with pytest.raises(ValueError, match="v_scale was passed, but the cache has 16 bits"):
        flashsmith.decode(None, asked.q, asked.k, asked.v, v_scale=torch.ones(1))


def test_a_ring_too_small_for_the_sums_is_no_configuration() -> None:
    (problem,) = replace(SMALL, B_c=16, n_stages=2).problems()
    assert problem.startswith("A team's ring has 4096 bytes; its sums take 5248: more stages, or")
    assert all(not cfg.problems() for cfg in HEURISTICS)
