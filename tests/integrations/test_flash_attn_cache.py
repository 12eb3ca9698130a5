"""``flash_attn_with_kvcache`` agrees with FlashAttention's: arguments, results, writes to the
cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashsmith.flash_attn import flash_attn_with_kvcache
from flashsmith.reference import Semantics
from support.decoding import HEURISTICS, assert_near_truth, in_pages, requests

CFG = HEURISTICS[0]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"causal": True, "num_splits": 3},
        {"window_size": (20, 0), "softcap": 5.0},
        {"softcap": -1.0, "softmax_scale": 0.2},
        {"alibi_slopes": torch.rand(4), "causal": True},
    ],
    ids=lambda given: "+".join(given),
)
def test_results_are_those_of_the_reference(given: dict[str, Any]) -> None:
    asked = requests(CFG, (40, 3, 17), n_q=3)
    found = flash_attn_with_kvcache(
        asked.q, asked.k, asked.v, cache_seqlens=asked.seqlens, return_softmax_lse=True, **given
    )
    meant = {name: value for name, value in given.items() if name != "num_splits"}
    meant["softcap"] = max(meant.get("softcap", 0.0), 0.0)
    assert_near_truth(found, asked, Semantics(**meant))


def test_new_keys_are_appended_step_by_step() -> None:
    """A model that generates makes such calls: three steps over pages, with gaps between rows of
    q."""
    asked = requests(CFG, (20, 9), n_q=1)
    placed = in_pages(asked, 8)
    assert placed.block_table is not None
    lengths = torch.tensor([17, 6], dtype=torch.int32)
    rows = torch.arange(2)
    for _ in range(3):
        k, v = (t[rows, lengths.long()][:, None] for t in (asked.k, asked.v))
        found = flash_attn_with_kvcache(
            asked.q.transpose(2, 3).contiguous().transpose(2, 3), placed.k, placed.v, k, v,
            cache_seqlens=lengths, block_table=placed.block_table, causal=True,
            return_softmax_lse=True,
        )  # fmt: skip
        lengths += 1
        known = requests(CFG, tuple(lengths.tolist()))
        known.q.copy_(asked.q)
        for i, n in enumerate(lengths.tolist()):
            known.k[i, :n], known.v[i, :n] = asked.k[i, :n], asked.v[i, :n]
        assert_near_truth(found, known)


def test_all_rows_are_keys_without_lengths() -> None:
    asked = requests(CFG, (33, 33), behind=0)
    out = flash_attn_with_kvcache(asked.q, asked.k, asked.v)
    lengths = flash_attn_with_kvcache(asked.q, asked.k, asked.v, cache_seqlens=33)
    assert isinstance(out, torch.Tensor)
    assert torch.equal(out, lengths)


@pytest.mark.parametrize("d_head", [59, 40])
def test_heads_of_any_size_are_read_and_appended(d_head: int) -> None:
    """The result is that of heads padded with zeros; the window is a tensor, as FlashAttention
    allows."""
    asked = requests(CFG, (20, 9))
    k, v = asked.k.nan_to_num(), asked.v.nan_to_num()
    for t in (asked.q, k, v):
        t[..., d_head:] = 0
    lengths = torch.tensor([17, 6], dtype=torch.int32)
    given: dict[str, Any] = {
        "cache_seqlens": lengths, "softmax_scale": d_head**-0.5, "return_softmax_lse": True,
    }  # fmt: skip
    new = k[:, :1].clone(), v[:, 1:2].clone()
    expected = flash_attn_with_kvcache(
        asked.q, k.clone(), v.clone(), *new, window_size=(9, 0), **given
    )
    cut = [t[..., :d_head].contiguous() for t in (asked.q, k, v, *new)]
    found = flash_attn_with_kvcache(*cut, window_size=torch.tensor([9, 0]), **given)
    assert torch.equal(found[0], expected[0][..., :d_head])
    assert torch.equal(found[1], expected[1])
    for cache, whole, added in zip(cut[1:3], (k, v), cut[3:], strict=True):
        written = whole[..., :d_head].clone()
        written[torch.arange(2), lengths.long()] = added[:, 0]
        assert torch.equal(cache, written)
