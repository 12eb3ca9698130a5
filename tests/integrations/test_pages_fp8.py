"""Packed queries over FP8 pages, which split-KV kernels read, or which are copied to 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from flashsmith.integrations.pages import attend_pages
from flashsmith.ops.kv_cache import KVCache
from support.decoding import in_pages
from support.fp8_caches import FP8, quantised, spread
from support.paged import FEW, LENGTHS_K, MANY, Paged, paged

EITHER_WAY = pytest.mark.parametrize("n_q", [MANY, FEW], ids=["many", "few"])
# The shape of the scales, such as (n_heads_kv,); per-token scales lie in pages here.
SCALES = {"none": None, "tensor": (1,), "head": (2,), "request": (5, 2), "token": (5, 75, 2)}


class InFP8:
    """Requests with FP8 pages; ``exact`` has the same numbers in 16 bits, since scales are powers
    of 2."""

    def __init__(self, n_q: tuple[int, ...] = MANY, per: str = "head", page_size: int = 16,
                 **sizes: Any):  # fmt: skip
        given = paged(n_q, page_size=page_size, **sizes)
        keys, shape = given.in_a_row, SCALES[per]
        scales = [None if shape is None else 2.0 ** torch.randint(-4, 3, shape) for _ in "kv"]
        low = [quantised(t, scale) for t, scale in zip((keys.k, keys.v), scales, strict=True)]
        wide = [
            (t.double() * spread(scale)).bfloat16() for t, scale in zip(low, scales, strict=True)
        ]
        placed = in_pages(replace(keys, k=low[0], v=low[1]), page_size)
        if per == "token":
            rows = [scale[..., None] for scale in scales if scale is not None]
            lies = in_pages(replace(keys, k=rows[0], v=rows[1]), page_size)
            scales = [lies.k[..., 0], lies.v[..., 0]]
        self.k_scale, self.v_scale = scales
        exact = replace(keys, k=wide[0], v=wide[1])
        self.given: Paged = replace(given, k=placed.k, v=placed.v, in_a_row=exact)

    def attend(self, function: Callable[..., Any] = attend_pages, **keywords: Any) -> Any:
        """Returns o and lse of ``function``."""
        q, k, v, cu_q, cu_k, longest_q, longest_k = self.given.arguments
        keywords = {"k_scale": self.k_scale, "v_scale": self.v_scale, **keywords}
        return function(
            q, k, v, block_table=self.given.table, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k,
            max_seqlen_q=longest_q, max_seqlen_k=longest_k, return_lse=True, **keywords,
        )  # fmt: skip


@pytest.mark.parametrize("per", SCALES)
@EITHER_WAY
def test_results_are_those_of_what_the_pages_stand_for(n_q: tuple[int, ...], per: str) -> None:
    asked = InFP8(n_q, per)
    asked.given.assert_right(*asked.attend(causal=True), causal=True)


@pytest.mark.parametrize("sizes", [{"page_size": 5}, {"d_head": 40}, {"d_v": 24}], ids=str)
@EITHER_WAY
def test_pages_and_heads_of_any_size(n_q: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Pages that ``decode`` does not accept are copied."""
    asked = InFP8(n_q, **sizes)
    asked.given.assert_right(*asked.attend(softcap=4.0), softcap=4.0)


@EITHER_WAY
def test_strides_that_are_no_whole_chunks_are_copied(n_q: tuple[int, ...]) -> None:
    asked = InFP8(n_q)
    k = torch.cat([asked.given.k.view(torch.uint8)] * 2, -1).view(FP8)[..., 8 : 8 + 64]
    k.view(torch.uint8).copy_(asked.given.k.view(torch.uint8))
    asked.given = replace(asked.given, k=k)
    asked.given.assert_right(*asked.attend(causal=True), causal=True)


@EITHER_WAY
def test_graphs_are_compiled(n_q: tuple[int, ...]) -> None:
    asked = InFP8(n_q)
    compiled = torch.compile(attend_pages, fullgraph=True, backend="eager")
    asked.given.assert_right(*asked.attend(compiled, causal=True), causal=True)


def test_copies_are_rounded_once() -> None:
    asked = InFP8()
    k_scale, v_scale = torch.tensor([0.0137, 3.3]), torch.tensor([[0.7, 1.1]] * 5)
    given = asked.given
    pages = KVCache(
        given.k, given.v, given.in_a_row.seqlens, given.table, k_scale=k_scale, v_scale=v_scale
    )
    k, v = pages.gathered(max(LENGTHS_K), torch.bfloat16)
    places = given.table[:, :5].clamp(0, len(given.k) - 1).long()
    for copy, pages_of, scale in ((k, given.k, k_scale), (v, given.v, v_scale[0])):
        expected = (pages_of.double()[places] * scale.double()[:, None]).float().bfloat16()
        torch.testing.assert_close(copy, expected.flatten(1, 2), rtol=0, atol=0, equal_nan=True)


def test_copies_of_fp16_are_finite() -> None:
    asked = InFP8()
    given, large = asked.given, torch.tensor([150.0])
    k, v = (torch.full_like(t.float(), 448.0).to(FP8) for t in (given.k, given.v))
    pages = KVCache(k, v, given.in_a_row.seqlens, given.table, k_scale=large, v_scale=large)
    assert all((t == 65504).all() for t in pages.gathered(None, torch.float16))


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"k_scale": torch.ones(3)}, ValueError, r"k_scale has shape \(3,\) on cpu; expected one of"),
    ({"v_scale": torch.ones(4, 2)}, ValueError, r"v_scale has shape \(4, 2\) .*\(5, 2\)"),
    ({"k_scale": torch.ones(2).double()}, TypeError, "k_scale has dtype torch.float64"),
    ({"v_scale": -torch.ones(2)}, ValueError, "v_scale has -1.0; expected positive numbers"),
    ({"k_scale": 2.0}, TypeError, "k_scale is a float"),
]


@pytest.mark.parametrize(("changed", "error", "words"), BAD, ids=[words for *_, words in BAD])
@EITHER_WAY
def test_bad_scales_are_refused(
    n_q: tuple[int, ...], changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        InFP8(n_q).attend(**changed)


@EITHER_WAY
def test_scales_of_16_bits_and_pages_of_two_dtypes_are_refused(n_q: tuple[int, ...]) -> None:
    asked = InFP8(n_q)
    of_16_bits = asked.given.v.bfloat16()
    asked.given = replace(asked.given, v=of_16_bits)
    with pytest.raises(TypeError, match=r"k has dtype .*e4m3fn and v .*bfloat16; they"):
        asked.attend()
    asked.given = replace(asked.given, k=of_16_bits)
    with pytest.raises(ValueError, match=r"k_scale was passed, but k has dtype .*; pass"):
        asked.attend()
