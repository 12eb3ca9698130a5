"""Blocks of queries that see no key of a warpgroup: the same gradients, by fewer products."""

from __future__ import annotations

import pytest

from flashsmith.configs import CAUSAL, FULL, KernelId, parse_kernel_name_into_config
from flashsmith.configs.sm90.backward import Sm90BackwardKernelConfig
from flashsmith.lab.soak.case import SoakCase
from flashsmith.lab.soak.draw_meaning import MIXED_VARIANTS
from flashsmith.lab.soak.launches import make_launch, prepare_for
from flashsmith.lab.soak.meaning import Meaning
from flashsmith.problem import Problem
from flashsmith.runtime import emulation
from support.left_out import assert_same_bits, build_both

CASES = 12
# Two and three warpgroups; no turns and those of either scope; sums in order, in any order, by all
# warpgroups and by one in turn.
NAMES = {
    "two": "(FP16, 64, 64, 128, 2): backward+wgmma+q_stages_2+do_stages_1+in_order",
    "three": "(BF16, 64, 64, 192, 3): backward+wgmma+q_stages_3+do_stages_3+turns_1+persistent"
    "+in_order",
    "long turns": "(BF16, 128, 64, 128, 2): backward+wgmma+q_stages_3+do_stages_2+v_regs_4+turns_2"
    "+persistent",
}
SKIPPING = {
    way: parse_kernel_name_into_config(f"{name}+skip_unseen") for way, name in NAMES.items()
}
VARIANTS = (FULL, CAUSAL, MIXED_VARIANTS[0])
KERNELS = [
    KernelId(skipping, variant)
    for skipping in SKIPPING.values()
    for variant in VARIANTS
    if skipping.serves_variant(variant)
]


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    build_both(KERNELS)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda each: each.slug)
def test_same_bits_in_random_problems(kernel: KernelId) -> None:
    assert_same_bits(kernel, CASES)


@pytest.mark.parametrize("way", SKIPPING)
@pytest.mark.parametrize(("n_q", "n_k"), [(384, 384), (384, 350), (200, 500)])
def test_products_of_what_is_seen(way: str, n_q: int, n_k: int) -> None:
    config = SKIPPING[way]
    problem = Problem(config.dtype, config.d_head, 1, 1, 1, n_q, n_k)
    case = SoakCase(problem, Meaning(causal=True))
    launch = make_launch(KernelId(config, CAUSAL), prepare_for(config, case, "cpu"))
    with emulation(launch.kernel) as emulator:
        launch.call(launch.workspace())
        flops = emulator.counters()["wgmma_flops"]
    assert flops == products(config, n_q, n_k) * 2 * 64 * 64 * config.d_head


def products(config: Sm90BackwardKernelConfig, n_q: int, n_k: int) -> int:
    """Returns the number of products of 64 keys and 64 queries under a causal mask: four of each
    warpgroup that is seen, and dQ of all warpgroups."""
    total = 0
    for key in range(0, n_k, config.B_c):
        visited = {query for query in range(0, n_q, 64) if query + 63 + n_k - n_q >= key}
        total += len(visited) * config.n_warpgroups
        for own in range(key, min(key + config.B_c, n_k), 64):
            total += 4 * sum(query + 63 + n_k - n_q >= own for query in visited)
    return total
