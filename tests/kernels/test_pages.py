"""Forward kernels that read keys from pages, called by ``forward`` and directly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import (
    ForwardKernelConfig,
    KernelId,
    Variant,
    parse_kernel_name_into_config,
)
from flashsmith.configs.variant import PAGED
from flashsmith.errors import EmulatorFault
from flashsmith.jit import Target
from flashsmith.runtime import CallArgs, Kernel, Site, emulation, find_kernel, load_kernels
from support.decoding import WILD
from support.paged import Paged, paged
from support.semantics import CLUSTER, SM80

QUEUE, TURNS, FOUR, PLAIN = (
    parse_kernel_name_into_config(name)
    for name in (
        "(BF16, 64, 64, 64, 1): wgmma+stages_2+overlap+persistent+queue+lazy_8+tma_store",
        "(BF16, 128, 128, 64, 2): wgmma+stages_2+q_regs_8+overlap+ping_pong+persistent+tiles+stale"
        "+lazy_4+skip_unseen",
        "(BF16, 64, 256, 64, 4): wgmma+stages_2+overlap+ping_pong+persistent+tiles+tma_store"
        "+skip_unseen",
        "(BF16, 256, 64, 48, 1): wgmma+stages_1",
    )
)
CAUSAL = Variant.from_name("causal+varlen+paged")
MIXED = Variant.from_name("causal+window+softcap+alibi+sinks+varlen+padded+paged")
BY_CONFIG = pytest.mark.parametrize(
    "cfg", [QUEUE, TURNS, PLAIN], ids=["queue", "turns", "no overlap"]
)
# Queries and keys: none, one, at the boundaries of pages and blocks, and fewer keys than queries.
N_Q = (1, 0, 5, 70, 33, 20, 3, 9)
N_K = (1, 20, 64, 129, 257, 16, 17, 0)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    kernels = [KernelId(cfg, CAUSAL) for cfg in (QUEUE, TURNS, FOUR, PLAIN)]
    in_a_row = replace(CAUSAL, paged=False)
    kernels += [KernelId(QUEUE, variant) for variant in (PAGED, MIXED, in_a_row)]
    load_kernels(kernels, Target.emulator())


def attend(cfg: ForwardKernelConfig, given: Paged, **semantics: Any) -> Any:
    return flashsmith.forward(
        cfg, given.q, given.k, given.v, return_lse=True, block_table=given.table,
        cu_seqlens_q=given.cu_seqlens_q, max_seqlen_q=max(given.n_q),
        seqused_k=given.in_a_row.seqlens, **semantics,
    )  # fmt: skip


def asked(cfg: ForwardKernelConfig, page_size: int = 16, **sizes: Any) -> Paged:
    """Returns requests with pages in random order; unused rows are NaN, and unused page numbers are
    wild."""
    return paged(N_Q, N_K, page_size, **({"d_head": cfg.d_head} | sizes))


# ---- results ----


@pytest.mark.parametrize("page_size", [16, 32, 48, 64, 256])
@BY_CONFIG
def test_pages_of_many_sizes(cfg: ForwardKernelConfig, page_size: int) -> None:
    given = asked(cfg, page_size, spare=2)
    given.assert_right(*attend(cfg, given, causal=True), causal=True)


@pytest.mark.parametrize("heads", [(4, 4), (6, 1)], ids=str)
def test_heads_that_share_keys_and_those_that_do_not(heads: tuple[int, int]) -> None:
    given = asked(QUEUE, heads=heads)
    given.assert_right(*attend(QUEUE, given))


def test_all_that_is_done_to_scores_of_rows_that_are_shorter() -> None:
    given = asked(QUEUE, 32, d_head=40, d_v=24)
    semantics = {
        "causal": True, "window_size": (50, -1), "softcap": 4.0, "sinks": torch.rand(4),
        "alibi_slopes": torch.rand(4),
    }  # fmt: skip
    given.assert_right(*attend(QUEUE, given, **semantics), **semantics)


@BY_CONFIG
def test_the_size_and_order_of_pages_change_no_bit(cfg: ForwardKernelConfig) -> None:
    found = []
    for page_size in (16, 64, 112):
        torch.manual_seed(0)
        found.append(attend(cfg, asked(cfg, page_size), causal=True))
    for o, lse in found[1:]:
        assert torch.equal(o, found[0][0]) and torch.equal(lse, found[0][1])


def test_bits_are_those_of_keys_in_a_row() -> None:
    given = asked(QUEUE, 32)
    rows = given.in_a_row
    expected = flashsmith.forward(
        QUEUE, given.q, rows.k, rows.v, causal=True, return_lse=True, seqused_k=rows.seqlens,
        cu_seqlens_q=given.cu_seqlens_q, max_seqlen_q=max(given.n_q),
    )  # fmt: skip
    assert all(map(torch.equal, attend(QUEUE, given, causal=True), expected))


def test_requests_that_share_pages() -> None:
    """The pages of one prompt are shared by the requests that continue it."""
    given = paged((30, 40), (100, 150), 16)
    n = 96
    for cache, rows in ((given.k, given.in_a_row.k), (given.v, given.in_a_row.v)):
        rows[1, :n] = rows[0, :n]
        cache[given.table[1, : n // 16]] = math.nan
    given.table[1, : n // 16] = given.table[0, : n // 16]
    given.assert_right(*attend(QUEUE, given, causal=True), causal=True)


def test_pages_that_a_window_has_left_behind_are_not_read() -> None:
    """A server may have given these pages to others; two of them share a block with keys that are
    seen."""
    given = paged((40,), (300,), 16)
    window = {"causal": True, "window_size": (20, 0)}
    left = (300 - 40 - 20) // 16
    given.k[given.table[0, :left]] = given.v[given.table[0, :left]] = math.nan
    given.table[0, : left - 2] = WILD
    semantics = window | {
        "softcap": 1e4, "alibi_slopes": torch.zeros(4), "sinks": torch.zeros(4)
    }  # fmt: skip
    o, _ = attend(QUEUE, replace(given, v=given.v[..., :32]), **semantics)
    assert o.isfinite().all()
    whole = replace(given, in_a_row=replace(given.in_a_row, v=given.in_a_row.v[..., :32]))
    whole.assert_right(
        *attend(QUEUE, replace(given, v=given.v[..., :32]), **semantics), **semantics
    )


LAYOUTS = {
    "heads before rows": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "k and v side by side": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    "gaps between pages": lambda t: torch.stack([t, t], 1)[:, 0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_caches_of_any_layout(layout: str) -> None:
    given = asked(QUEUE)
    expected = attend(QUEUE, given, causal=True)
    laid = replace(given, k=LAYOUTS[layout](given.k), v=given.v)
    assert all(map(torch.equal, attend(QUEUE, laid, causal=True), expected))


def test_queries_of_equal_numbers_need_no_places() -> None:
    given = paged((9, 9, 9), (64, 20, 100), 16)
    o, lse = flashsmith.forward(
        QUEUE, given.q.unflatten(0, (3, 9)), given.k, given.v, causal=True, return_lse=True,
        seqused_k=given.in_a_row.seqlens, block_table=given.table,
    )  # fmt: skip
    given.assert_right(o.flatten(0, 1), lse.transpose(0, 1).flatten(1), causal=True)


def test_few_pages_of_a_large_table() -> None:
    """A single page has an arbitrary stride, and the rows of the page table have gaps."""
    given = paged((5, 3), (16, 9), 16)
    first = given.table[0, 0]
    table = torch.full((2, 40), WILD, dtype=torch.int32)
    table[:, 0] = 0
    k, v = given.k[first][None].clone(), given.v[first][None].clone()
    rows = given.in_a_row
    for of_rows in (rows.k, rows.v):
        of_rows[1, :9] = of_rows[0, :9]
    one = replace(given, k=k, v=v, table=table[:, :20])
    one.assert_right(*attend(QUEUE, one, causal=True), causal=True)


# ---- numbers that no host checks ----


def launch(kernel: Kernel, given: Paged, lengths: list[int] | None = None) -> torch.Tensor:
    """Returns o, which was filled with NaN, of a direct launch."""
    used = given.in_a_row.seqlens if lengths is None else torch.tensor(lengths).int()
    extras = CallArgs(
        cu_seqlens_q=given.cu_seqlens_q, seqused_k=used, window_right=0, max_seqlen_q=max(given.n_q)
    )
    o = torch.full_like(given.q, math.nan)
    tensors = given.q, given.k, given.v, o
    plan = kernel.plan(*tensors, block_table=given.table, extras=extras)
    n_bytes = plan.workspace_bytes
    workspace = torch.zeros(n_bytes, dtype=torch.uint8) if n_bytes else None
    kernel(*tensors, 0.1, workspace=workspace, block_table=given.table, extras=extras)
    return o


@pytest.mark.parametrize("page", [-1, WILD, (1 << 31) - 1, -(1 << 31)])
def test_pages_that_are_nowhere_are_zeros(page: int) -> None:
    given = asked(QUEUE)
    kernel = find_kernel(KernelId(QUEUE, CAUSAL), Target.emulator())
    request, place = 4, 2
    gone = given.table[request, place].item()
    given.table[request, place] = page
    found = launch(kernel, given)
    given.table[request, place] = gone
    given.k[gone] = given.v[gone] = 0
    expected = launch(kernel, given)
    assert torch.equal(found, expected)


def test_lengths_beyond_the_table_are_cut_to_it() -> None:
    given = paged((20, 5), (64, 32), 16)
    given.table[0, 3:] = given.table[0, 0]
    given.table[1, 2:] = given.table[0, 1]
    given = replace(given, table=given.table[:, :4].contiguous())
    kernel = find_kernel(KernelId(QUEUE, CAUSAL), Target.emulator())
    wild = launch(kernel, given, [(1 << 31) - 1, 65])
    assert torch.equal(wild, launch(kernel, given, [64, 64]))
    none = launch(kernel, given, [-5, -(1 << 31)])
    assert (none == 0).all()


# ---- what is refused ----

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "rows of pages": ({"page_size": 24}, "k has pages of 24 rows; .* a multiple of 16 rows"),
    "a table of floats": ({"table": torch.zeros(8, 20)}, "block_table has dtype .*int32"),
    "a table of other requests": (
        {"table": torch.zeros(7, 20).int()},
        r"block_table has shape \(7, 20\); it must .* of shape \(batch, pages\) = \(8, at least 1",
    ),
    "no table": ({"table": None}, "block_table is None, but .*paged needs it"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pages(name: str) -> None:
    changed, words = BAD[name]
    given = asked(QUEUE, changed.get("page_size", 16))
    changed = {key: value for key, value in changed.items() if key != "page_size"}
    given = replace(given, **changed)
    kernel = find_kernel(KernelId(QUEUE, CAUSAL), Target.emulator())
    with pytest.raises((ValueError, TypeError), match=words):
        launch(kernel, given)


def test_keys_have_their_lengths_beside_a_table() -> None:
    given = asked(QUEUE)
    places = {"cu_seqlens_q": given.cu_seqlens_q, "block_table": given.table}
    with pytest.raises(ValueError, match="without seqused_k; seqused_k says how many keys"):
        flashsmith.forward(QUEUE, given.q, given.k, given.v, **places)


@pytest.mark.parametrize("cfg", [SM80, CLUSTER], ids=["sm80", "cluster"])
def test_configurations_without_such_kernels(cfg: ForwardKernelConfig) -> None:
    assert not cfg.serves_variant(CAUSAL)
    assert cfg.serves_variant(replace(CAUSAL, paged=False))
    assert cfg.adapted_to(CAUSAL).serves_variant(CAUSAL) == (cfg is CLUSTER)


# ---- synchronisation ----

SEEDS = 12


def sites_of(kernel: Kernel, given: Paged) -> tuple[torch.Tensor, set[Site]]:
    with emulation(kernel) as emulator:
        good = launch(kernel, given)
        return good, set(emulator.sites())


def unnoticed(kernel: Kernel, given: Paged, good: torch.Tensor, sites: set[Site]) -> Iterator[Site]:
    for site in sites:
        for seed in range(SEEDS):
            with emulation(kernel, dropped=site, count=False, seed=seed):
                try:
                    same = torch.equal(launch(kernel, given).nan_to_num(7), good.nan_to_num(7))
                except EmulatorFault:
                    same = False
            if not same:
                break
        else:
            yield site


@pytest.mark.parametrize("cfg", [QUEUE, FOUR, PLAIN], ids=["queue", "turns", "no overlap"])
def test_every_dropped_site_is_noticed(cfg: ForwardKernelConfig) -> None:
    kernel = find_kernel(KernelId(cfg, CAUSAL), Target.emulator())
    lengths = (
        ((2 * cfg.B_r, 9), (2 * cfg.B_r + 2 * cfg.B_c - 20, 70)),
        ((3 * cfg.B_r - 20,), (3 * cfg.B_r - 20,)),
        ((3 * cfg.B_r,), (cfg.B_c - 4,)),
    )
    requests = [paged(*each, page_size=32, d_head=cfg.d_head) for each in lengths]
    left: set[Site] = set()
    seen: set[Site] = set()
    for given in requests:
        good, sites = sites_of(kernel, given)
        left |= sites - seen
        seen |= sites
        left -= (left & sites) - set(unnoticed(kernel, given, good, left & sites))
    assert any(site.file.endswith("boxes.cuh") for site in seen)
    assert {"warp_sync", "mbarrier_wait_parity"} <= {site.kind for site in seen}
    assert not left, f"dropping these changed nothing: {sorted(map(str, left))}"
