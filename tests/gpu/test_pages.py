"""Packed queries over pages on the card: graphs with other lengths and pages, generated text."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from flashsmith.flash_attn import flash_attn_varlen_func
from flashsmith.reference import reference_varlen
from support.paths import ROOT

pytestmark = pytest.mark.gpu

EXAMPLE = ROOT / "examples" / "paged_generation.py"
BATCH, PAGES, PAGE_SIZE, HEADS, HEADS_KV, D_HEAD = 4, 32, 16, 8, 2, 128
ROWS = PAGES * PAGE_SIZE
_NEAR = 0.02


class Requests:
    """Of ``most`` queries at most each, in graphs that know no more of them."""

    def __init__(self, most: int) -> None:
        torch.manual_seed(0)
        self.most, self.n_pages = most, 2 * BATCH * PAGES
        self.q = torch.randn(BATCH * most, HEADS, D_HEAD, device="cuda").bfloat16()
        self.k, self.v = (
            torch.zeros(self.n_pages, PAGE_SIZE, HEADS_KV, D_HEAD, device="cuda").bfloat16()
            for _ in range(2)
        )
        self.cu_seqlens_q, self.cu_seqlens_k = (
            torch.zeros(BATCH + 1, dtype=torch.int32, device="cuda") for _ in range(2)
        )
        self.table = torch.zeros(BATCH, PAGES, dtype=torch.int32, device="cuda")
        self.in_a_row = (self.k[:0], self.v[:0])

    def draw(self, seed: int) -> None:
        """Other numbers in the same tensors; NaN wherever no key is."""
        torch.manual_seed(seed)
        lengths = [torch.randint(most + 1, (BATCH,)) for most in (self.most, ROWS)]
        for places, own in zip((self.cu_seqlens_q, self.cu_seqlens_k), lengths, strict=True):
            places[1:] = own.cumsum(0)
        pages = torch.randperm(self.n_pages)[: BATCH * PAGES].view(BATCH, PAGES)
        self.table.copy_(pages)
        self.in_a_row = tuple(
            torch.randn(BATCH, ROWS, HEADS_KV, D_HEAD).bfloat16().cuda() for _ in range(2)
        )
        for cache, own in zip((self.k, self.v), self.in_a_row, strict=True):
            for request, length in enumerate(lengths[1].tolist()):
                own[request, length:] = math.nan
            cache.fill_(math.nan)
            cache[pages.cuda()] = own.unflatten(1, (PAGES, PAGE_SIZE))

    def attend(self) -> torch.Tensor:
        found = flash_attn_varlen_func(
            self.q, self.k, self.v, self.cu_seqlens_q, self.cu_seqlens_k, self.most, ROWS,
            causal=True, block_table=self.table,
        )  # fmt: skip
        assert isinstance(found, torch.Tensor)
        return found

    def assert_near(self, o: torch.Tensor) -> None:
        exact, _ = reference_varlen(
            self.q, *self.in_a_row, cu_seqlens_q=self.cu_seqlens_q, causal=True,
            seqused_k=self.cu_seqlens_k.diff(),
        )  # fmt: skip
        own = slice(int(self.cu_seqlens_q[-1]))
        assert (o[own].double() - exact[own]).abs().max() < _NEAR


@pytest.mark.parametrize("most", [1, 3, 200])
def test_a_graph_is_replayed_with_other_lengths_and_pages(most: int) -> None:
    asked = Requests(most)
    asked.draw(0)
    asked.attend()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = asked.attend()
    for seed in range(1, 6):
        asked.draw(seed)
        graph.replay()
        asked.assert_near(out)


@pytest.mark.parametrize("how", [[], ["--sample", "--copies=2"]], ids=["first", "sample"])
def test_2000_steps_over_transformers_pages(how: list[str]) -> None:
    pytest.importorskip("transformers", reason="pip install 'flashsmith[transformers]'")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--steps=2000", *how],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
