"""Packed heads: a tile has the rows of all query heads that share a head of K and V."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import (
    CAUSAL,
    FULL,
    ForwardKernelConfig,
    KernelId,
    Variant,
    parse_kernel_name_into_config,
)
from flashsmith.errors import EmulatorFault
from flashsmith.jit import Target
from flashsmith.reference import Semantics
from flashsmith.runtime import emulation, load_kernels
from support.problems import Emulated, Tensors, run_with_lse
from support.semantics import BAND, assert_right, packed, packing_of, tensors_of
from support.sm90_kernels import PACKED
from support.soak import assert_right_in_random_problems

GROUPS = (2, 3, 4, 7, 8)
ODD_GROUPS = (1, 5, 33, 64)
CASES = 12
VARIANTS = (
    FULL,
    CAUSAL,
    BAND,
    Variant(causal=True, padded=True),
    Variant(causal=True, varlen=True),
    Variant(causal=True, window=True, varlen=True, padded=True),
)
KERNELS = [KernelId(config, variant) for config in PACKED for variant in VARIANTS]
EACH = pytest.mark.parametrize("config", PACKED, ids=str)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    load_kernels(KERNELS, Target.emulator())


def lengths(rng: Random) -> Iterator[tuple[int, int]]:
    """Yields numbers of queries and of keys that are no multiples of anything."""
    while True:
        yield rng.randrange(1, 160) | 1, rng.randrange(1, 300) | 1


@EACH
@pytest.mark.parametrize("group", GROUPS)
def test_random_lengths_with_every_mask(config: ForwardKernelConfig, group: int) -> None:
    """O and the LSE of every head are right, and nothing else is written."""
    rng = Random(f"{config} {group}")
    masks: tuple[dict[str, Any], ...] = (
        {},
        {"causal": True},
        {"causal": True, "top_left": True},
        {"causal": True, "window_size": (rng.randrange(100), 0)},
        {"window_size": (rng.randrange(60), rng.randrange(60))},
    )
    for mask, (n_q, n_k) in zip(masks, lengths(rng), strict=False):
        qkv = tensors_of(config, n_q, n_k, heads=(2 * group, 2))
        assert_right(config, qkv, Semantics(**mask))


@EACH
@pytest.mark.parametrize("group", ODD_GROUPS)
def test_groups_of_one_head_and_of_as_many_as_rows(config: ForwardKernelConfig, group: int) -> None:
    assert_right(
        config, tensors_of(config, 9, 70, batch=1, heads=(group, 1)), Semantics(causal=True)
    )


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda each: each.slug)
def test_random_problems_of_the_soak(kernel: KernelId) -> None:
    """The soak draws tensors with gaps, rows shorter than d_head, hidden infinities and any order
    of warps."""
    assert_right_in_random_problems(kernel, CASES)


@pytest.mark.parametrize("group", [3, 7, 8])
def test_varlen_sequences(group: int) -> None:
    config, lengths_q, lengths_k = PACKED[0], [40, 1, 0, 19, 130], [40, 300, 9, 0, 77]
    qkv = packed(config, lengths_q, lengths_k, heads=(2 * group, 2))
    assert_right(config, qkv, Semantics(causal=True), packing_of(lengths_q, lengths_k))


def assert_equal(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    for of_packed, of_whole in zip(found, expected, strict=True):
        assert torch.equal(of_packed, of_whole)


@pytest.mark.parametrize("group", [4, 7])
def test_same_bits_as_by_heads(group: int, emulated: Emulated) -> None:
    """A row visits the same blocks of keys, whatever rows are beside it, if its maximum is its own
    at every block."""
    by_heads = parse_kernel_name_into_config(
        "(FP16, 64, 64, 64, 1): wgmma+stages_2+overlap+tma_store"
    )
    assert isinstance(by_heads, ForwardKernelConfig)
    kernels = [
        emulated(KernelId(replace(by_heads, packed_heads=packs), CAUSAL)) for packs in (False, True)
    ]
    q, k, v = tensors_of(by_heads, 201, 230, heads=(2 * group, 2))
    expected, found = (run_with_lse(each, (q, k, v)) for each in kernels)
    assert_equal(found, expected)


def views(config: ForwardKernelConfig, n: int, heads: tuple[int, int]) -> tuple[Tensors, Any]:
    """Returns q, k, v in one tensor, as a projection writes them, and o in memory with the heads
    before the sequence."""
    h, h_kv = heads
    dtype = config.dtype.to_torch_dtype()
    joined = torch.randn(2, n, h + 2 * h_kv, config.d_head).to(dtype)
    q, k, v = joined.split([h, h_kv, h_kv], dim=2)
    o = torch.full((2, h, n + 3, config.d_head + 8), math.nan, dtype=dtype)
    return (q, k, v), o


@EACH
@pytest.mark.parametrize("group", [3, 7])
def test_views_with_strides(config: ForwardKernelConfig, group: int) -> None:
    """Memory between the rows of O, and behind them, is not written."""
    n, d = 77, config.d_head
    qkv, memory = views(config, n, (2 * group, 2))
    o = memory[:, :, :n, :d].transpose(1, 2)
    expected, expected_lse = assert_right(config, qkv, Semantics(causal=True))
    _, lse = flashsmith.forward(config, *qkv, o, causal=True, return_lse=True)
    assert torch.equal(o, expected) and torch.equal(lse, expected_lse)
    assert memory[:, :, n:].isnan().all() and memory[..., d:].isnan().all()


@EACH
def test_values_of_shorter_rows(config: ForwardKernelConfig) -> None:
    q, k, v = tensors_of(config, 77, 77, heads=(14, 2))
    assert_right(config, (q, k, v[..., :24]), Semantics(causal=True))
    assert_right(config, (q[..., :40], k[..., :40], v), Semantics(causal=True))


@pytest.mark.parametrize("group", [4, 7])
def test_gradients_with_the_lse_of_packed_heads(group: int) -> None:
    config = PACKED[0]
    q, k, v = (t.float().requires_grad_() for t in tensors_of(config, 70, 90, heads=(2 * group, 2)))
    rounded = [t.detach().to(config.dtype.to_torch_dtype()) for t in (q, k, v)]
    o = torch.empty_like(rounded[0])
    _, lse = flashsmith.forward(config, *rounded, o, causal=True, return_lse=True)
    do = torch.randn_like(o)
    found = flashsmith.backward(None, do, *rounded, o, lse, causal=True)

    exact = [t.detach().double().requires_grad_() for t in rounded]
    each = [exact[0], *(t.repeat_interleave(group, dim=2) for t in exact[1:])]
    of_q, of_k, of_v = (t.transpose(1, 2) for t in each)
    hidden = torch.ones(70, 90, dtype=torch.bool).triu(90 - 70 + 1)
    S = (of_q @ of_k.mT * config.d_head**-0.5).masked_fill(hidden, -math.inf)
    (S.softmax(-1) @ of_v).transpose(1, 2).backward(do.double())
    for own, tensor in zip(found[:3], exact, strict=True):
        assert tensor.grad is not None
        torch.testing.assert_close(own.double(), tensor.grad, atol=0.05, rtol=0.02)


@pytest.mark.parametrize(
    ("group", "n", "n_tiles"), [(7, 580, 33), (4, 580, 19), (8, 97, 7), (64, 3, 2)]
)
def test_work_is_that_of_tiles_of_fewer_queries(
    group: int, n: int, n_tiles: int, emulated: Emulated
) -> None:
    """Each tile of full attention over one block of keys has both products of its rows."""
    config = PACKED[0]
    kernel = emulated(KernelId(config, FULL))
    qkv = tensors_of(config, n, 100, batch=1, heads=(group, 1))
    with emulation(kernel) as emulator:
        run_with_lse(kernel, qkv)
        flops = emulator.counters()["wgmma_flops"]
    assert flops == n_tiles * config.B_r * 128 * config.d_head * 4


@pytest.mark.parametrize("kind", ["fence_proxy_async", "named_barrier_sync", "barrier_sync"])
@pytest.mark.parametrize("config", [PACKED[0], PACKED[2]], ids=["Q in registers", "Q in memory"])
def test_no_synchronisation_of_left_rows_and_of_stores_can_be_dropped(
    config: ForwardKernelConfig, kind: str, emulated: Emulated
) -> None:
    """A row is left with 7 heads, which the kernel itself sets to zero."""
    kernel = emulated(KernelId(config, CAUSAL))
    qkv = tensors_of(config, 150, 150, batch=2, heads=(14, 2))
    with emulation(kernel) as emulator:
        good = run_with_lse(kernel, qkv)
        sites = [site for site in emulator.sites() if site.kind == kind]
    assert sites

    def is_noticed(site: Any) -> bool:
        for seed in range(CASES):
            with emulation(kernel, dropped=site, count=False, seed=seed):
                try:
                    found = run_with_lse(kernel, qkv)
                except EmulatorFault:
                    return True
                if not all(map(torch.equal, found, good)):
                    return True
        return False

    assert [site for site in sites if not is_noticed(site)] == []


@pytest.mark.parametrize(
    "feature", [{"softcap": 5.0}, {"alibi_slopes": torch.ones(14)}, {"sinks": torch.ones(14)}]
)
def test_work_that_depends_on_the_head_is_refused(feature: dict[str, Any]) -> None:
    config = PACKED[0]
    qkv = tensors_of(config, 9, 9, heads=(14, 2))
    (name,) = feature
    variant = name.removesuffix("_slopes")
    with pytest.raises(ValueError, match=rf"which has no kernels for causal\+{variant}; pass None"):
        flashsmith.attention(*qkv, causal=True, config=config, **feature)


def test_more_heads_than_rows_are_refused() -> None:
    config = PACKED[0]
    qkv = tensors_of(config, 5, 5, batch=1, heads=(65, 1))
    o = torch.empty_like(qkv[0])
    with pytest.raises(ValueError, match=r"65 heads .* kernels with packed heads take up to 64"):
        flashsmith.forward(config, *qkv, o)
