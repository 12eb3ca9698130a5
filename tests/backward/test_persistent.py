"""The sm90 backward with persistent thread blocks, which compute tile after tile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flashsmith.configs import DType, KernelId, Sm90BackwardKernelConfig, Variant
from flashsmith.configs.sm90.backward_space import heuristic
from flashsmith.jit import Target
from flashsmith.runtime import load_kernels
from support.gradient_calls import Call, call_of
from support.gradients import assert_near_truth, launch, plan_of
from support.semantics import packing_of

PLAIN = [heuristic(DType.FP16, d) for d in (64, 96, 128, 192)]
CONFIGS = [replace(cfg, persistent=True) for cfg in PLAIN]
VARIANTS = [Variant(), Variant(causal=True), Variant(causal=True, varlen=True)]
NUM_SMS = 4  # SMs of the emulated GPU
SEEDS = 3
EACH = pytest.mark.parametrize("cfg", CONFIGS, ids=lambda cfg: f"d{cfg.d_head}")


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    kernels = [KernelId(cfg, variant) for cfg in CONFIGS for variant in VARIANTS]
    once = [KernelId(with_one_tile(cfg), Variant(causal=True)) for cfg in CONFIGS]
    load_kernels([*kernels, *once], Target.emulator())


def with_one_tile(cfg: Sm90BackwardKernelConfig) -> Sm90BackwardKernelConfig:
    return replace(cfg, persistent=False)


def blocks(cfg: Sm90BackwardKernelConfig, call: Call) -> int:
    plan = plan_of(call.kernel(cfg), call)
    return max(plan.launches, key=lambda each: each.shared_memory_bytes).grid[0]


def assert_right(cfg: Sm90BackwardKernelConfig, call: Call) -> None:
    for seed in range(SEEDS):
        assert_near_truth(launch(call.kernel(cfg), call, seed=seed), call)


@EACH
@pytest.mark.parametrize("tiles", [1, NUM_SMS, NUM_SMS + 1, 11])
def test_any_number_of_tiles(cfg: Sm90BackwardKernelConfig, tiles: int) -> None:
    call = call_of(torch.float16, (1, 70, 2, cfg.d_head), (1, tiles * cfg.B_c - 5, 1, cfg.d_head))
    assert blocks(cfg, call) == min(tiles, NUM_SMS)
    assert_right(cfg, call)


@EACH
def test_tiles_that_no_query_sees_lie_between_others(cfg: Sm90BackwardKernelConfig) -> None:
    """Every head has tiles that no query sees, so that a thread block goes from such tiles to
    others."""
    shapes = (2, 130, 4, cfg.d_head), (2, 4 * cfg.B_c, 2, cfg.d_head)
    call = call_of(torch.float16, *shapes, causal=True, top_left=True)
    assert blocks(cfg, call) == NUM_SMS
    assert_right(cfg, call)


@EACH
def test_without_queries_all_keys_have_zeros(cfg: Sm90BackwardKernelConfig) -> None:
    call = call_of(torch.float16, (1, 0, 2, cfg.d_head), (1, 9 * cfg.B_c, 2, cfg.d_head))
    found = launch(call.kernel(cfg), call)
    assert not found.k.any() and not found.v.any()


@EACH
def test_tiles_beyond_their_sequence_are_passed_over(cfg: Sm90BackwardKernelConfig) -> None:
    lengths_q, lengths_k = [70, 0, 1, 130, 33, 5], [50, 20, 3 * cfg.B_c, 0, 1, 200]
    packing = packing_of(lengths_q, lengths_k)
    shapes = (sum(lengths_q), 2, cfg.d_head), (sum(lengths_k), 1, cfg.d_head)
    assert_right(cfg, call_of(torch.float16, *shapes, None, packing, causal=True))


@EACH
def test_results_are_those_of_blocks_with_one_tile(cfg: Sm90BackwardKernelConfig) -> None:
    """dK and dV are equal to the bit, because both sum over the queries in the same order."""
    shapes = (2, 200, 4, cfg.d_head), (2, 3 * cfg.B_c - 20, 2, cfg.d_head)
    call = call_of(torch.float16, *shapes, causal=True)
    found, once = (launch(call.kernel(each), call) for each in (cfg, with_one_tile(cfg)))
    assert torch.equal(found.k, once.k)
    assert torch.equal(found.v, once.v)
