"""Speculative decoding: the last keys of a request are the nodes of a tree of draft tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.dtype import DType
from flashsmith.ops import decode_calls
from flashsmith.reference import Semantics
from support.decoding import (
    PLAIN,
    Placed,
    Requests,
    assert_near_truth,
    assert_same_bits,
    in_pages,
    in_slots,
    requests,
)
from support.fp8_caches import Quantised

WIDE_FP8 = DECODE.families[0].heuristic(DecodeWorkload(DType.BF16, 64, rows=64, fp8_cache=True))
LENGTHS, SIZES = (90, 33, 20, 7, 260), (20, 20, 20, 7, 1)  # the third and fourth are only a tree
N_Q = 20
Mask = Callable[..., Any]


@dataclass(frozen=True)
class Trees:
    """The parents of each request's nodes, which come before their children; -1 is the text so
    far."""

    parents: list[list[int]]

    @classmethod
    def random(cls, sizes: tuple[int, ...], seed: int) -> Trees:
        rng = Random(seed)
        return cls([[rng.randrange(-1, node) for node in range(n)] for n in sizes])

    @property
    def sizes(self) -> torch.Tensor:
        return torch.tensor([len(own) for own in self.parents], dtype=torch.int32)

    def paths(self, n_q: int) -> torch.Tensor:
        """Returns whether query i's path to the root has node j, as (batch, n_q, n_q)."""
        found = torch.zeros(len(self.parents), n_q, n_q, dtype=torch.bool)
        for request, own in enumerate(self.parents):
            for query, node in enumerate(range(len(own))):
                while node >= 0:
                    found[request, query, node] = True
                    node = own[node]
        return found

    def semantics(self, lengths: tuple[int, ...], n_q: int, **keywords: Any) -> Semantics:
        """Returns a mask_mod for the keys that each query sees."""
        visible = torch.zeros(len(lengths), n_q, max(lengths), dtype=torch.bool)
        paths = self.paths(n_q)
        for request, (length, own) in enumerate(zip(lengths, self.parents, strict=True)):
            before = length - len(own)
            visible[request, :, :before] = True
            visible[request, :, before:length] = paths[request, :, : len(own)]
        return Semantics(mask_mod=lambda b, h, q, k: visible[b, q, k], **keywords)


def by_matrix(paths: torch.Tensor, lengths: torch.Tensor, sizes: torch.Tensor) -> Mask:
    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        node = kv_idx - (lengths[b] - sizes[b])
        return (node < 0) | paths[b, q_idx, node]

    return mask


def by_bits(paths: torch.Tensor, lengths: torch.Tensor, sizes: torch.Tensor) -> Mask:
    """Returns a mask_mod that reads an int64 for each query; bit j says whether it sees node j."""
    bits = (paths.long() << torch.arange(paths.shape[-1])).sum(-1)
    words = bits[..., None].view(torch.int32)  # (batch, n_q, 2)

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        node = kv_idx - (lengths[b] - sizes[b])
        return (node < 0) | (words[b, q_idx, node >> 5] >> (node & 31) & 1 != 0)

    return mask


def call(q: torch.Tensor, placed: Placed, mask: Mask, **keywords: Any) -> Any:
    return flashsmith.decode(
        None, q, placed.k, placed.v, cache_seqlens=placed.seqlens, block_table=placed.block_table,
        mask_mod=mask, return_lse=True, **keywords,
    )  # fmt: skip


@pytest.mark.parametrize("splits", [0, 3])
@pytest.mark.parametrize("heads", [(4, 2), (2, 2), (12, 1)], ids=str)
@pytest.mark.parametrize("written", [by_matrix, by_bits])
def test_a_draft_sees_its_path_and_all_before(
    written: Callable[..., Mask], heads: tuple[int, int], splits: int
) -> None:
    trees, asked = Trees.random(SIZES, 0), requests(PLAIN, LENGTHS, N_Q, heads)
    mask = written(trees.paths(N_Q), asked.seqlens, trees.sizes)
    semantics = trees.semantics(LENGTHS, N_Q)
    o, lse = call(asked.q, in_slots(asked), mask, splits=splits)
    assert_near_truth((o, lse), asked, semantics)
    # A query without a node sees nothing if its request is only a tree.
    assert not o[3, SIZES[3] :].any()
    assert (lse[3, :, SIZES[3] :] == -math.inf).all()
    paged = call(asked.q, in_pages(asked, 16), mask, splits=splits)
    assert_same_bits(paged, (o, lse))


def test_64_drafts_are_a_tree() -> None:
    """The last draft is bit 63."""
    lengths = (64, 300, 90)
    trees = Trees.random((64, 64, 64), 1)
    trees.parents[0][:] = range(-1, 63)  # a chain
    asked = requests(PLAIN, lengths, 64, (4, 1))
    given = trees.paths(64), asked.seqlens, trees.sizes
    found = call(asked.q, in_pages(asked, 64), by_bits(*given))
    assert_near_truth(found, asked, trees.semantics(lengths, 64))
    assert_same_bits(call(asked.q, in_pages(asked, 1), by_matrix(*given)), found)


@pytest.mark.parametrize("splits", [0, 2])
def test_a_cache_of_8_bits_holds_a_tree(splits: int) -> None:
    trees = Trees.random(SIZES, 2)
    asked = Quantised(WIDE_FP8, LENGTHS, N_Q, (8, 2), per="request")
    placed = in_pages(asked.stored, 16)
    mask = by_bits(trees.paths(N_Q), asked.exact.seqlens, trees.sizes)
    scales = {"k_scale": asked.k_scale, "v_scale": asked.v_scale}
    found = call(asked.exact.q, placed, mask, splits=splits, **scales)
    assert_near_truth(found, asked.exact, trees.semantics(LENGTHS, N_Q))


@pytest.mark.parametrize("window", [(-1, -1), (30, -1), (60, 0), (0, 3)], ids=str)
def test_windows_and_trees_both_count(window: tuple[int, int]) -> None:
    """Keys before a window are skipped, without a shift of the indices of the others."""
    lengths = (300, 90, 20)
    trees, asked = Trees.random((N_Q,) * 3, 3), requests(PLAIN, lengths, N_Q)
    semantics = trees.semantics(lengths, N_Q, window_size=window, causal=True)
    mask = by_bits(trees.paths(N_Q), asked.seqlens, trees.sizes)
    for splits in (0, 3):
        found = call(asked.q, in_slots(asked), mask, splits=splits, window_size=window, causal=True)
        assert_near_truth(found, asked, semantics)


def test_other_trees_and_lengths_in_the_same_tensors_are_the_same_call() -> None:
    """No kernel is looked up and no plan is made, as in the replay of a graph."""
    rows = requests(PLAIN, (300,) * 5, N_Q, behind=0)
    lengths, sizes = torch.zeros(2, 5, dtype=torch.int32)
    paths = torch.zeros(5, N_Q, N_Q, dtype=torch.bool)
    mask = by_matrix(paths, lengths, sizes)
    for seed in range(4):
        rng = Random(seed)
        now = tuple(rng.choice((1, 7, 20, 41, 300)) for _ in range(5))
        trees = Trees.random(tuple(rng.randint(1, min(n, N_Q)) for n in now), seed)
        lengths.copy_(torch.tensor(now))
        sizes.copy_(trees.sizes)
        paths.copy_(trees.paths(N_Q))
        remembered = len(decode_calls._choices)
        placed = Placed(rows.k, rows.v, lengths)
        found = call(rows.q, placed, mask)
        asked = Requests(rows.q, rows.k, rows.v, now)
        assert_near_truth(found, asked, trees.semantics(now, N_Q))
        assert seed == 0 or len(decode_calls._choices) == remembered


def test_drafts_may_be_appended_by_the_call_that_verifies_them() -> None:
    """The lengths captured by the mask are those with the drafts; the call's are those without."""
    lengths, size = (70, 33, 8), 8
    trees, asked = Trees.random((size,) * 3, 5), requests(PLAIN, lengths, size)
    new = {}
    for name, cache in (("k_new", asked.k), ("v_new", asked.v)):
        new[name] = torch.stack([own[n - size : n] for own, n in zip(cache, lengths, strict=True)])
    before = asked.seqlens - size
    mask = by_matrix(trees.paths(size), asked.seqlens, trees.sizes)
    k, v = asked.k.clone(), asked.v.clone()
    for own_k, own_v, n in zip(k, v, before.tolist(), strict=True):
        own_k[n:] = own_v[n:] = math.nan
    found = call(asked.q, Placed(k, v, before), mask, **new)
    assert_near_truth(found, asked, trees.semantics(lengths, size))
