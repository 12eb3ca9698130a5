"""Splits of about equal length, for few requests of unlike lengths: one for each thread block."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch

from flashsmith.configs import DecodeKernelConfig, FlashDecodeKernelConfig
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.dtype import DType
from flashsmith.reference import Semantics
from flashsmith.runtime import emulation
from support.decoding import (
    PLAIN,
    TEAMS,
    VARIED,
    Requests,
    assert_near_truth,
    assert_same_bits,
    call_of,
    in_pages,
    plan_of,
    requests,
    run,
)

LONG = DECODE.families[0].heuristic(DecodeWorkload(DType.FP16, 256))
KERNELS: list[DecodeKernelConfig] = [PLAIN, *VARIED, LONG, *TEAMS[:2]]


def blocks_of(cfg: DecodeKernelConfig, asked: Requests, num_sms: int) -> int:
    return int(plan_of(cfg, asked, num_sms=num_sms).launches[0].grid[0])


def slots_that_are_written(cfg: DecodeKernelConfig, asked: Requests, num_sms: int) -> int:
    """Returns how many partial results a call stores."""
    kernel, tensors, extras = call_of(cfg, asked)
    with emulation(kernel, count=False, num_sms=num_sms):
        plan = kernel.plan(tensors, extras=extras)
        workspace = torch.full((plan.workspace_bytes // 4,), math.nan)
        counters = torch.zeros(plan.counter_bytes, dtype=torch.uint8)
        kernel(tensors, 1.0, counters=counters, workspace=workspace, extras=extras)
    row_0 = workspace[: workspace.numel() // (cfg.B_r * (cfg.d_head + 2)) * cfg.B_r * cfg.d_head]
    return int((~row_0.reshape(-1, cfg.B_r * cfg.d_head)[:, 0].isnan()).sum())


def counts_of_splits(lengths: list[int], step: int, tiles: int, blocks: int) -> list[int]:
    """Returns the splits of a work tile of each request: the fewest KV steps each with which all
    have no more splits than there are blocks, or up to a half more."""
    steps = [max(-(-n // step), 1) for n in lengths]
    part = max(-(-sum(steps) * tiles // blocks), 2)
    while (needed := tiles * sum(-(-n // part) for n in steps)) > blocks:
        part = part * needed // blocks + 1
    return [-(-n // part) for n in steps]


@pytest.mark.parametrize(
    ("lengths", "tiles", "num_sms"),
    [
        ([2225, 430, 1088, 53, 766, 4242, 471], 2, 32),
        ([9000, 1, 1, 1], 2, 40),
        ([9000] * 7, 2, 32),
        ([0, 0, 0, 8000], 2, 20),
        ([9000, *([100] * 33), 7000], 1, 75),  # more requests than lanes
    ],
    ids=lambda given: f"{sum(given)} keys" if isinstance(given, list) else str(given),
)
def test_requests_have_as_many_splits_as_their_lengths_ask_for(
    lengths: list[int], tiles: int, num_sms: int
) -> None:
    cfg = PLAIN
    assert isinstance(cfg, FlashDecodeKernelConfig)
    asked = requests(cfg, lengths, heads=(2 * tiles, tiles))
    blocks = blocks_of(cfg, asked, num_sms)
    assert blocks in (num_sms, 2 * num_sms), "as many as are resident, or one for each SM"
    counts = counts_of_splits(lengths, cfg.B_c * cfg.n_teams, tiles, blocks)
    assert slots_that_are_written(cfg, asked, num_sms) == tiles * sum(n for n in counts if n > 1)
    assert tiles * sum(counts) > 0.6 * blocks, "most blocks have a split"


def test_more_work_tiles_than_a_third_of_the_blocks_have_work_ranges() -> None:
    """Rounding would leave many blocks without a split. Five SMs have places for ten blocks."""
    lengths = [3000, 2000, 900, 5000]
    asked = requests(PLAIN, lengths, heads=(4, 1))
    for num_sms in (3, 4, 5, 7):
        assert_near_truth(run(PLAIN, asked, num_sms=num_sms), asked)
    assert [blocks_of(PLAIN, asked, num_sms) for num_sms in (3, 4, 7)] == [6, 4, 14]
    assert slots_that_are_written(PLAIN, asked, 6) == 3 + 2 + 5
    assert slots_that_are_written(PLAIN, asked, 5) > 2, "ranges end within most work tiles"


@pytest.mark.parametrize("cfg", KERNELS, ids=str)
def test_any_lengths_are_right(cfg: DecodeKernelConfig) -> None:
    semantics = Semantics(causal=True, sinks=torch.linspace(-3, 6, 4))
    for lengths, num_sms in (
        ([1000, 3, 900], 8),
        ([0, 2600, 65], 20),
        ([2500, 2500], 33),
        ([1, *([70] * 33), 3000], 100),
    ):
        asked = requests(cfg, lengths, n_q=3, heads=(4, 1))
        found = run(cfg, asked, semantics, in_pages(asked, 16), num_sms=num_sms)
        assert_near_truth(found, asked, semantics)


@pytest.mark.parametrize("seed", range(20))
def test_random_calls(seed: int) -> None:
    """Bits are the same at every run, whichever block arrives last."""
    rng = Random(seed)
    torch.manual_seed(seed)
    cfg, kv = rng.choice(KERNELS), rng.choice((1, 1, 2))
    lengths = [
        rng.choice((0, 1, rng.randint(1, 400), rng.randint(1, 4000)))
        for _ in range(rng.choice((2, 2, 3, 5, 36)))
    ]
    asked = requests(cfg, lengths, n_q=rng.choice((1, 1, 2, 5)), heads=(4 * kv, kv))
    placed = in_pages(asked, rng.choice((16, 64)), seed) if rng.random() < 0.5 else None
    semantics = Semantics(causal=rng.random() < 0.5, softcap=rng.choice((0.0, 3.0)))
    num_sms = rng.randint(2, 140)
    found = run(cfg, asked, semantics, placed, num_sms=num_sms, workers=rng.choice((1, 3, 40)))
    assert_near_truth(found, asked, semantics)
    how = {"num_sms": num_sms, "seed": seed, "workers": rng.choice((1, 2, 40))}
    assert_same_bits(found, run(cfg, asked, semantics, placed, **how))
