"""The time until the last tile of a forward ends: by hand, and against another simulation."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from flashsmith.configs import CAUSAL, FULL, DType, Sm90ForwardKernelConfig, Variant, Workload
from flashsmith.configs.cost_model import resident_blocks, slowdown
from flashsmith.configs.sm90.forward_space import get_sm90_autotuning_kernel_configs
from flashsmith.configs.sm90.tile_schedule import schedule_cost
from flashsmith.problem import Problem

SMS = 132
SPACE = get_sm90_autotuning_kernel_configs([DType.BF16], [64, 128])
PERSISTENT = next(cfg for cfg in SPACE if cfg.persistent and cfg.B_r == 128 and cfg.d_head == 128)


def workload(
    n_heads: int, n_q: int, n_k: int, variant: Variant = FULL, batch: int = 1, d_head: int = 128
) -> Workload:
    return Workload(Problem(DType.BF16, d_head, batch, n_heads, n_heads, n_q, n_k), variant)


def first_rows_in_order(config: Sm90ForwardKernelConfig, n_heads: int, n_q: int) -> list[int]:
    """Returns the first row of each tile by the arithmetic of attention/tile_order.cuh."""
    n_blocks = -(-n_q // config.B_r)
    rows = []
    for index in range(n_blocks * n_heads):
        if config.heads_per_group == 0:
            block = index % n_blocks
        else:
            group, rest = divmod(index, config.heads_per_group * n_blocks)
            heads = min(n_heads - group * config.heads_per_group, config.heads_per_group)
            block = n_blocks - 1 - rest // heads
        rows.append(block * config.B_r)
    return rows


def simulated(config: Sm90ForwardKernelConfig, asked: Workload, num_sms: int) -> float:
    """Returns the cost by walking over all blocks for each tile."""
    problem = asked.problem
    rows = first_rows_in_order(config, problem.batch * problem.heads, problem.seq_len_q)
    resident = 1 if config.persistent else resident_blocks(config)
    resident = min(resident, math.ceil(len(rows) / num_sms))
    ends = [0.0] * (num_sms * resident)
    for row in rows:
        last = min(row + config.B_r, problem.seq_len_q) - 1
        seen = problem.seq_len_k
        if asked.variant.causal:
            seen = max(last + 1 + problem.seq_len_k - problem.seq_len_q, 0)
        time = config.B_r * (math.ceil(seen / config.B_c) * config.B_c + 128)
        ends[ends.index(min(ends))] += time
    return slowdown(config, resident) * max(ends)


@pytest.mark.parametrize("seed", range(30))
def test_the_cost_is_that_of_a_plain_simulation(seed: int) -> None:
    drawn = random.Random(seed)
    config = drawn.choice(SPACE)
    n_q = drawn.randint(1, 3000)
    n_k = n_q if drawn.random() < 0.5 else drawn.randint(1, 5000)
    variant = drawn.choice((FULL, CAUSAL))
    asked = workload(drawn.randint(1, 24), n_q, n_k, variant, drawn.randint(1, 2), config.d_head)
    num_sms = drawn.choice((78, SMS, 160))
    assert schedule_cost(config, asked, num_sms) == simulated(config, asked, num_sms)


def test_equal_tiles_take_whole_rounds() -> None:
    of_one = schedule_cost(PERSISTENT, workload(1, 128, 4096), SMS)
    assert of_one is not None
    for n_heads, rounds in ((SMS, 1), (SMS + 1, 2), (5 * SMS, 5)):
        found = schedule_cost(PERSISTENT, workload(n_heads, 128, 4096), SMS)
        assert found == pytest.approx(rounds * of_one)


def test_long_tiles_that_start_late_cost_more() -> None:
    """24 heads are groups of 16 and 8: the last eight long tiles begin when most SMs are done."""
    asked = workload(24, 1000, 1000, CAUSAL)
    small, large = (replace(PERSISTENT, heads_per_group=n) for n in (16, 64))
    of_small, of_large = (schedule_cost(cfg, asked, SMS) for cfg in (small, large))
    assert of_small is not None and of_large is not None and of_small > 1.2 * of_large


def test_many_tiles_are_shared_evenly_without_a_jump() -> None:
    """Where the simulation ends, the mean takes over: within half a tile of it."""
    at = [schedule_cost(PERSISTENT, workload(n, 128, 4096), SMS) for n in (24 * SMS, 24 * SMS + 1)]
    simulated_end, mean = (cost for cost in at if cost is not None)
    assert abs(mean / simulated_end - 1) < 0.03


@pytest.mark.parametrize(
    "variant",
    [
        Variant(causal=True, window=True),
        Variant(varlen=True),
        Variant(varlen=True, paged=True),
        Variant(score=7),
    ],
    ids=lambda variant: variant.name,
)
def test_unknown_numbers_of_keys_have_no_cost(variant: Variant) -> None:
    assert schedule_cost(PERSISTENT, workload(16, 1024, 1024, variant), SMS) is None


def test_nothing_to_compute_has_no_cost() -> None:
    for sizes in ((0, 1024, 1024), (16, 0, 1024), (16, 1024, 0)):
        assert schedule_cost(PERSISTENT, workload(*sizes), SMS) is None


def test_rows_before_all_keys_still_take_a_tile() -> None:
    asked = workload(1, 1000, 10, CAUSAL)  # most queries see no key
    cost = schedule_cost(PERSISTENT, asked, SMS)
    assert cost == simulated(PERSISTENT, asked, SMS) and cost >= 128 * 128
