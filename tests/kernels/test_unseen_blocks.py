"""The sm80 forward: warps leave out blocks of keys that none of their rows sees."""

from __future__ import annotations

import math

import pytest

from flashsmith.configs import CAUSAL, FULL, KernelId, Variant, parse_kernel_name_into_config
from flashsmith.jit import Target
from flashsmith.lab.soak.draw_meaning import MIXED_VARIANTS
from flashsmith.runtime import emulation, load_kernels
from support.problems import Emulated, assert_correct, random_qkv, run
from support.semantics import BAND
from support.soak import assert_right_in_random_problems

CASES = 12
# One thread block for an SM, of eight warps that have 16 rows each; and two for an SM.
ALONE = {
    "heuristic": "(BF16, 256, 128, 64, 8): async+eager+swizzled+load_2_2_0_tiles+buffer"
    "+opt_softmax",
    "copies late": "(FP16, 192, 128, 32, 8): async+load_2_2_2_tiles",
}
SHARING = "(BF16, 64, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
CONFIGS = {way: parse_kernel_name_into_config(name) for way, name in ALONE.items()}
VARIANTS = (CAUSAL, BAND, Variant(window=True), *MIXED_VARIANTS[:2])
KERNELS = [KernelId(config, variant) for config in CONFIGS.values() for variant in VARIANTS]


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    load_kernels(KERNELS, Target.emulator())


def count_mma(kernel: KernelId, n_q: int, n_k: int, emulated: Emulated) -> int:
    qkv = random_qkv(kernel.config, n_q, seq_len_k=n_k)
    with emulation(emulated(kernel)) as emulator:
        assert_correct(run(emulated(kernel), qkv), qkv, kernel)
        return emulator.counters()["mma"]


def causal_mma(kernel: KernelId, n_q: int, n_k: int, rows: int) -> int:
    """Returns the products of a causal kernel that computes them for ``rows`` rows at a time."""
    config = kernel.config
    of_block = 2 * rows * config.B_c * config.d_head // (16 * 8 * 16)
    total = 0
    for row in range(0, -(-n_q // config.B_r) * config.B_r, rows):
        keys = min(row + rows + n_k - n_q, n_k)
        total += max(math.ceil(keys / config.B_c), 0) * of_block
    return total


@pytest.mark.parametrize("way", CONFIGS)
@pytest.mark.parametrize(("n_q", "n_k"), [(256, 256), (300, 300), (200, 500), (128, 100)])
def test_products_of_what_a_warp_sees(way: str, n_q: int, n_k: int, emulated: Emulated) -> None:
    kernel = KernelId(CONFIGS[way], CAUSAL)
    assert count_mma(kernel, n_q, n_k, emulated) == causal_mma(kernel, n_q, n_k, rows=16)


def test_other_kernels_compute_all_blocks_of_a_tile(emulated: Emulated) -> None:
    """Another thread block of the SM uses the time in which a warp waits."""
    kernel = KernelId(parse_kernel_name_into_config(SHARING), CAUSAL)
    assert count_mma(kernel, 256, 256, emulated) == causal_mma(kernel, 256, 256, rows=128)
    full = KernelId(CONFIGS["heuristic"], FULL)
    assert count_mma(full, 256, 256, emulated) == 2 * 256**3 // (16 * 8 * 16)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda each: each.slug)
def test_random_problems(kernel: KernelId) -> None:
    assert_right_in_random_problems(kernel, CASES)
