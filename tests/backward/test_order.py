"""The sm90 backward where blocks of keys add up dQ in order, and the last one finishes it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from flashsmith.configs import DType, KernelId, Sm90BackwardKernelConfig, Variant
from flashsmith.configs.sm90.backward_space import heuristic
from flashsmith.jit import Target
from flashsmith.reference import ReferenceGradients
from flashsmith.runtime import emulation, find_backward, load_kernels
from support.backward_kernels import BAND
from support.gradient_calls import Call, call_of
from support.gradients import assert_near_truth, differing, launch, launch_loaded, plan_of
from support.semantics import packing_of


def in_order(d_head: int, *, persistent: bool) -> Sm90BackwardKernelConfig:
    return replace(heuristic(DType.FP16, d_head), dQ_in_order=True, persistent=persistent)


# Depending on d_head, the warpgroups (three or two) add to dQ in turn, or all at once, in parts.
CONFIGS = [in_order(d_head, persistent=d_head != 96) for d_head in (64, 96, 128, 192)]
VARIANTS = [Variant(), Variant(causal=True), Variant(causal=True, varlen=True), BAND]
SEEDS = 2
EACH = pytest.mark.parametrize("cfg", CONFIGS, ids=lambda cfg: f"d{cfg.d_head}")


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    kernels = [KernelId(cfg, variant) for cfg in CONFIGS for variant in VARIANTS]
    once = [KernelId(other(cfg), Variant(causal=True)) for cfg in CONFIGS]
    load_kernels([*kernels, *once], Target.emulator())


def other(cfg: Sm90BackwardKernelConfig) -> Sm90BackwardKernelConfig:
    """Returns the configuration with `persistent` flipped: one tile a thread block, or many."""
    return replace(cfg, persistent=not cfg.persistent)


def shapes(cfg: Sm90BackwardKernelConfig, n_q: int, n_k: int) -> tuple[tuple[int, ...], ...]:
    """Returns shapes of q and k: a batch of two, and two KV heads that two query heads each
    share."""
    return (2, n_q, 4, cfg.d_head), (2, n_k, 2, cfg.d_head)


def calls_of(cfg: Sm90BackwardKernelConfig) -> list[Call]:
    """Returns calls in which several blocks of keys add to each query: full, causal, a window, and
    varlen."""
    lengths_q, lengths_k = [70, 0, 1, 200, 33], [50, 20, 3 * cfg.B_c, 2 * cfg.B_c + 1, 0]
    packing = packing_of(lengths_q, lengths_k)
    of_q, of_k = (sum(lengths_q), 2, cfg.d_head), (sum(lengths_k), 1, cfg.d_head)
    many = shapes(cfg, 140, 4 * cfg.B_c - 20)
    return [
        call_of(torch.float16, *many),
        call_of(torch.float16, *many, causal=True),
        call_of(torch.float16, *shapes(cfg, 300, 400), window_size=(cfg.B_c + 9, 5)),
        call_of(torch.float16, of_q, of_k, None, packing, causal=True),
    ]


def launch_with(
    cfg: Sm90BackwardKernelConfig, call: Call, workers: int, seed: int
) -> ReferenceGradients:
    """Launches on ``workers`` host threads, so that as many thread blocks run at a time, in
    order."""
    loaded = find_backward(call.kernel(cfg), Target.emulator())
    with emulation(loaded, seed=seed, count=False, workers=workers):
        return launch_loaded(loaded, call)


@EACH
@pytest.mark.parametrize("ordered", [True, False])
def test_ordered_tiles_visit_a_block_of_queries_for_all_heads_before_the_next(
    cfg: Sm90BackwardKernelConfig, ordered: bool
) -> None:
    """Tiles that begin together then do not wait for each other at every head. The order of visits
    shows in dV: a small part is lost beside a large one, unless its opposite was added before."""
    large, small, n = 2.0**15, 2.0**-10, cfg.B_r

    def change(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor) -> None:
        for each in (q, v, do):  # all weights are equal, and dS is zero
            each.zero_()
        do[0, n:, 0], do[0, n:, 1], do[0, :n, 0] = large, -large, small

    of_q, of_k = (1, 2 * n, 2, cfg.d_head), (1, n, 1, cfg.d_head)
    call = call_of(torch.float16, of_q, of_k, change=change)
    found = launch(call.kernel(replace(cfg, dQ_in_order=ordered)), call)
    assert (found.v == (small if ordered else 0)).all()


@EACH
def test_every_run_has_the_same_bits(cfg: Sm90BackwardKernelConfig) -> None:
    """The bits do not depend on how many thread blocks run at a time, and no thread block waits for
    one that may not have begun."""
    assert cfg.is_deterministic
    for call in calls_of(cfg):
        found = launch(call.kernel(cfg), call)
        assert_near_truth(found, call)
        for seed in range(SEEDS):
            for workers in (1, 4):
                again = launch_with(cfg, call, workers, seed)
                assert not differing(cfg, again, found), (workers, seed)


@EACH
def test_the_order_is_that_of_the_keys_whoever_takes_them(cfg: Sm90BackwardKernelConfig) -> None:
    call = call_of(torch.float16, *shapes(cfg, 200, 5 * cfg.B_c - 20), causal=True)
    found, with_others = (launch(call.kernel(each), call) for each in (cfg, other(cfg)))
    assert not differing(cfg, found, with_others)


@EACH
def test_first_and_last_block_of_keys_are_known_in_every_band(
    cfg: Sm90BackwardKernelConfig,
) -> None:
    """If a first block added to memory that nobody stored to, or if the last block did not finish
    dQ, NaN would be left."""
    draw = random.Random(7)
    edges = [0, 1, 62, 63, 64, 65, cfg.B_c - 1, cfg.B_c, cfg.B_c + 1, 2 * cfg.B_c]
    for _ in range(25):
        n_q, n_k = (max(1, draw.choice(edges) + draw.choice(edges)) for _ in range(2))
        window = (draw.choice(edges), draw.choice(edges))
        call = call_of(
            torch.float16, (1, n_q, 2, cfg.d_head), (1, n_k, 1, cfg.d_head),
            window_size=window, top_left=draw.random() < 0.5,
        )  # fmt: skip
        assert_near_truth(launch(call.kernel(cfg), call), call, (n_q, n_k, window))


@EACH
def test_queries_that_see_no_keys_have_zeros(cfg: Sm90BackwardKernelConfig) -> None:
    """Whole blocks of queries before the first key or behind the last have no block of keys that
    would write their dQ."""
    before = call_of(torch.float16, *shapes(cfg, 300, 50), causal=True)
    behind = call_of(torch.float16, *shapes(cfg, 300, 50), window_size=(9, 0), top_left=True)
    for call, unseen in ((before, slice(0, 250)), (behind, slice(59, 300))):
        found = launch(call.kernel(cfg), call, gaps=True)
        assert_near_truth(found, call)
        assert not found.q[:, unseen].any()
        assert found.q.any()


@EACH
def test_nothing_is_cleared_and_nothing_converted(cfg: Sm90BackwardKernelConfig) -> None:
    call = call_of(torch.float16, *shapes(cfg, 200, 5 * cfg.B_c), causal=True)
    plan = plan_of(call.kernel(cfg), call)
    assert len(plan.launches) == 2, "that of the statistics and that of the products"
