"""Packed queries over pages on a GPU: graphs with other lengths and pages, generated text."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import product
from random import Random
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import DType, KernelId, Variant
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.configs.workload import Workload
from flashsmith.flash_attn import flash_attn_varlen_func
from flashsmith.reference import reference_varlen
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of
from support.paths import ROOT

pytestmark = pytest.mark.gpu

EXAMPLE = ROOT / "examples" / "paged_generation.py"
BATCH, ROWS, HEADS, HEADS_KV, D_HEAD = 4, 512, 8, 2, 128
_NEAR = 0.02


class Requests:
    """Requests of at most ``maximum`` queries each; a graph knows that bound and no lengths."""

    def __init__(self, maximum: int, page_size: int = 16, **semantics: Any) -> None:
        torch.manual_seed(0)
        self.page_size, self.pages = page_size, ROWS // page_size  # for each request
        self.maximum, self.n_pages = maximum, 2 * BATCH * self.pages
        self.semantics = {"causal": True} | semantics
        self.q = torch.randn(BATCH * maximum, HEADS, D_HEAD, device="cuda").bfloat16()
        self.k, self.v = (
            torch.zeros(self.n_pages, page_size, HEADS_KV, D_HEAD, device="cuda").bfloat16()
            for _ in range(2)
        )
        self.cu_seqlens_q, self.cu_seqlens_k = (
            torch.zeros(BATCH + 1, dtype=torch.int32, device="cuda") for _ in range(2)
        )
        self.table = torch.zeros(BATCH, self.pages, dtype=torch.int32, device="cuda")
        self.in_a_row = (self.k[:0], self.v[:0])

    def draw(self, seed: int) -> None:
        """Draws other numbers into the same tensors, with NaN wherever there is no key."""
        torch.manual_seed(seed)
        lengths = [torch.randint(maximum + 1, (BATCH,)) for maximum in (self.maximum, ROWS)]
        for offsets, own in zip((self.cu_seqlens_q, self.cu_seqlens_k), lengths, strict=True):
            offsets[1:] = own.cumsum(0)
        pages = torch.randperm(self.n_pages)[: BATCH * self.pages].view(BATCH, self.pages)
        self.table.copy_(pages)
        self.in_a_row = tuple(
            torch.randn(BATCH, ROWS, HEADS_KV, D_HEAD).bfloat16().cuda() for _ in range(2)
        )
        for cache, own in zip((self.k, self.v), self.in_a_row, strict=True):
            for request, length in enumerate(lengths[1].tolist()):
                own[request, length:] = math.nan
            cache.fill_(math.nan)
            cache[pages.cuda()] = own.unflatten(1, (self.pages, self.page_size))

    def attend(self) -> torch.Tensor:
        found = flash_attn_varlen_func(
            self.q, self.k, self.v, self.cu_seqlens_q, self.cu_seqlens_k, self.maximum, ROWS,
            block_table=self.table, **self.semantics,
        )  # fmt: skip
        assert isinstance(found, torch.Tensor)
        return found

    def assert_near(self, o: torch.Tensor) -> None:
        exact, _ = reference_varlen(
            self.q, *self.in_a_row, cu_seqlens_q=self.cu_seqlens_q,
            seqused_k=self.cu_seqlens_k.diff(), **self.semantics,
        )  # fmt: skip
        own = slice(int(self.cu_seqlens_q[-1]))
        assert (o[own].double() - exact[own]).abs().max() < _NEAR


WAYS: list[tuple[int, int, dict[str, Any]]] = [
    (1, 16, {}),  # decode
    (3, 16, {}),
    *((200, page_size, {}) for page_size in (8, 16, 64, 256)),  # copied, and in place
    (200, 16, {"window_size": (70, 0)}),
]


@pytest.mark.parametrize(("maximum", "page_size", "semantics"), WAYS, ids=str)
def test_a_graph_is_replayed_with_other_lengths_and_pages(
    maximum: int, page_size: int, semantics: dict[str, Any]
) -> None:
    asked = Requests(maximum, page_size, **semantics)
    asked.draw(0)
    asked.attend()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = asked.attend()
    for seed in range(1, 6):
        asked.draw(seed)
        graph.replay()
        asked.assert_near(out)


D_HEADS = 64, 128, 256


@pytest.fixture(scope="module")
def _built() -> None:
    """Builds all kernels at once."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("other GPUs copy pages")
    variants = (
        Variant(causal=True, window=window, varlen=True, paged=paged)
        for window in (False, True)
        for paged in (False, True)
    )
    kernels = product(
        (SM90_FORWARD.heuristic(Workload.square(DType.BF16, d, 4096)) for d in D_HEADS), variants
    )
    load_kernels([KernelId(*each) for each in kernels], target_of(torch.device("cuda")))


@pytest.mark.usefixtures("_built")
@pytest.mark.parametrize("seed", range(24))
def test_bits_are_those_of_keys_in_a_row(seed: int) -> None:
    """Each of twelve launches gives the bits of the same kernel on dense keys; only the code that
    copies keys differs."""
    rng = Random(seed)
    torch.manual_seed(seed)
    d_head, page_size = rng.choice(D_HEADS), rng.choice((16, 32, 48, 64, 256))
    heads, heads_kv = rng.choice(((8, 2), (4, 4), (16, 1), (32, 8)))
    n_q, n_k = (
        [rng.randint(0, maximum) for _ in range(rng.randint(1, 9))] for maximum in (700, 2000)
    )
    batch = min(len(n_q), len(n_k))
    n_q, n_k = [*n_q[: batch - 1], 300], n_k[:batch]
    pages = -(-max(*n_k, 1) // page_size)
    q = torch.randn(sum(n_q), heads, d_head, device="cuda").bfloat16()
    table = torch.randperm(2 * batch * pages, device="cuda")[: batch * pages].view(batch, pages)
    rows, cache = [], []
    for _ in range(2):
        row = torch.randn(batch, pages * page_size, heads_kv, d_head, device="cuda").bfloat16()
        for own, n in zip(row, n_k, strict=True):
            own[n:] = math.nan
        cache.append(row.new_full((2 * batch * pages, page_size, heads_kv, d_head), math.nan))
        cache[-1][table] = row.unflatten(1, (pages, page_size))
        rows.append(row)
    window = rng.choice((-1, rng.randint(1, 200)))
    semantics = {"causal": True, "window_size": (window, 0)}
    cu_q = torch.tensor([0, *n_q], device="cuda").cumsum(0).int()
    used = torch.tensor(n_k, device="cuda").int()
    given = {"cu_seqlens_q": cu_q, "max_seqlen_q": max(n_q), "seqused_k": used, **semantics}
    config = SM90_FORWARD.heuristic(Workload.square(DType.BF16, d_head, 4096))
    expected = flashsmith.forward(config, q, *rows, return_lse=True, **given)
    for _ in range(12):
        found = flashsmith.forward(
            config, q, *cache, block_table=table.int(), return_lse=True, **given
        )
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("page", [-1, 1 << 30, -(1 << 31), (1 << 31) - 1])
def test_pages_that_are_nowhere_are_not_followed(page: int) -> None:
    asked = Requests(100)
    asked.draw(0)
    asked.cu_seqlens_q.copy_(torch.arange(BATCH + 1) * asked.maximum)
    asked.cu_seqlens_k.copy_(torch.arange(BATCH + 1) * ROWS)
    asked.k.nan_to_num_(0.5)
    asked.v.nan_to_num_(0.5)
    gone = asked.table[2, 5].item()
    asked.table[2, 5] = page
    found = asked.attend()
    asked.table[2, 5] = gone
    asked.k[gone] = asked.v[gone] = 0
    if torch.cuda.get_device_capability() == (9, 0):  # other GPUs copy the first or the last page
        assert torch.equal(found, asked.attend())
    assert found.isfinite().all()


@pytest.mark.parametrize("how", [[], ["--sample", "--copies=2"]], ids=["first", "sample"])
def test_2000_steps_over_transformers_pages(how: list[str]) -> None:
    pytest.importorskip("transformers", reason="pip install 'flashsmith[transformers]'")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--steps=2000", *how],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
