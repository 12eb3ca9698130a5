"""Keys that no row of a warpgroup sees are left out: the same bits, by fewer products."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flashsmith.configs import (
    CAUSAL,
    FULL,
    KernelId,
    Sm90ForwardKernelConfig,
    parse_kernel_name_into_config,
)
from flashsmith.lab.soak.draw_meaning import MIXED_VARIANTS
from flashsmith.reference import Semantics
from flashsmith.runtime import emulation
from support.left_out import assert_same_bits, build_both, without_skips
from support.problems import Emulated, assert_correct, random_qkv, run_with_lse
from support.semantics import BAND, call, tensors_of

CASES = 20
# A block for each tile, and tiles that run into each other with Q in registers and without; the
# third has blocks of an odd number of steps, the last sums of each block.
NAMES = {
    "tile by tile": "(FP16, 64, 64, 64, 1): wgmma+stages_2+overlap+heads_2+lazy_4+stale+tma_store",
    "Q in registers": "(BF16, 64, 128, 128, 2): wgmma+stages_2+q_regs_4+overlap+ping_pong"
    "+persistent+queue+tiles+heads_2+lazy_8+stale+tma_store",
    "Q in shared memory": "(BF16, 64, 192, 48, 3): wgmma+stages_3+overlap+ping_pong+persistent"
    "+tiles+lazy_8",
    "FP8": "(FP16, 96, 64, 64, 1): wgmma+stages_2+overlap+persistent+tiles+lazy_4+fp8_scores"
    "+fp8_values+two_level",
}
SKIPPING = {
    way: parse_kernel_name_into_config(f"{name}+skip_unseen") for way, name in NAMES.items()
}
VARIANTS = (FULL, CAUSAL, BAND, MIXED_VARIANTS[0])
KERNELS = [
    KernelId(config, replace(variant, dropout=variant.dropout and not config.fp8_scores))
    for config in SKIPPING.values()
    for variant in VARIANTS
]

EACH = pytest.mark.parametrize("config", SKIPPING.values(), ids=SKIPPING.keys())


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    build_both(KERNELS)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda each: each.slug)
def test_same_bits_in_random_problems(kernel: KernelId) -> None:
    assert_same_bits(kernel, CASES)


@EACH
def test_same_bits_at_every_distance(config: Sm90ForwardKernelConfig, emulated: Emulated) -> None:
    """Moves the diagonal, and the end of the keys, through a block."""
    n_q = config.B_r + 70
    for variant in (FULL, CAUSAL):
        kernel = KernelId(config, variant)
        kernels = [emulated(each) for each in (without_skips(kernel), kernel)]
        for n_k in range(1, 2 * config.B_c + 2, 3):
            qkv = random_qkv(config, n_q, seq_len_k=n_k)
            expected, found = (run_with_lse(each, qkv) for each in kernels)
            assert torch.equal(found[0], expected[0]), n_k
            assert torch.equal(found[1], expected[1]), n_k
        assert_correct(found[0], qkv, kernel)


@pytest.mark.parametrize("way", ["Q in registers", "Q in shared memory"])
@pytest.mark.parametrize("left", [0, 20, 150])
def test_same_bits_in_windows_at_every_distance(way: str, left: int) -> None:
    """Moves the far edge through a block; warpgroups leave out none, one or more blocks there."""
    config = SKIPPING[way]
    whole = replace(config, skip_unseen=False)
    n_q = 2 * config.B_r + 70
    for n_k in range(n_q, n_q + config.B_c + 1, 7):
        qkv = tensors_of(config, n_q, n_k, batch=1, heads=(2, 1))
        window = Semantics(causal=True, window_size=(left, 0))
        expected, found = (call(cfg, qkv, window) for cfg in (whole, config))
        assert torch.equal(found[0], expected[0]), n_k
        assert torch.equal(found[1], expected[1]), n_k


def keys_multiplied(config: Sm90ForwardKernelConfig, n_q: int, n_k: int, left: int) -> int:
    """Returns how many keys the warpgroups multiply with Q and with V, if a query sees ``left``
    keys before its diagonal."""
    total, B_c, diagonal = 0, config.B_c, n_k - n_q
    for row in range(0, n_q, 64):
        end = max(min(row + 64 + diagonal, n_k), 1)
        n_blocks = -(-end // B_c) - max(row + diagonal - left, 0) // B_c
        saved = B_c // 2 if 0 < end % B_c <= B_c // 2 else 0
        # A tile of one block multiplies V with all of P.
        total += 2 * n_blocks * B_c - saved * (1 if n_blocks == 1 else 2)
    return total


@pytest.mark.parametrize(
    ("way", "n_q", "n_k", "left"),
    [
        ("tile by tile", 256, 256, 256),
        ("tile by tile", 128, 100, 128),
        ("Q in registers", 256, 290, 290),
        ("Q in registers", 384, 1000, 1000),
        ("Q in registers", 384, 480, 20),  # every second warpgroup leaves out a block of its tile
        ("Q in registers", 640, 1000, 200),
    ],
)
def test_products_of_what_is_seen(
    way: str, n_q: int, n_k: int, left: int, emulated: Emulated
) -> None:
    config = SKIPPING[way]
    kernel = emulated(KernelId(config, CAUSAL if left >= n_k else BAND))
    qkv = tensors_of(config, n_q, n_k, batch=1, heads=(1, 1))
    with emulation(kernel) as emulator:
        call(config, qkv, Semantics(causal=True, window_size=(-1 if left >= n_k else left, -1)))
        flops = emulator.counters()["wgmma_flops"]
    assert flops == keys_multiplied(config, n_q, n_k, left) * 64 * config.d_head * 2
