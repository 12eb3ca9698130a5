"""Times of a table's entry at grids that were not measured, and the kernels that they choose."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from flashsmith.configs import CAUSAL, FULL, DType, KernelId, Variant, Workload
from flashsmith.configs.registry import FORWARD
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.configs.sm90.tile_schedule import window_rank
from flashsmith.gpus import count_sms
from flashsmith.problem import Problem
from flashsmith.selection.carried_over import (
    CLEARLY,
    best_first,
    candidates,
    carried_over_ms,
)
from flashsmith.selection.choose import choose_for, find_tables
from flashsmith.selection.served import served_instances

H200 = "NVIDIA H200"
SMS = count_sms(H200)
TABLE = find_tables(FORWARD, H200)[0][-1].table
ENTRIES = list(TABLE.entries.values())


def workload(
    d_head: int, batch: int, heads: int, n: int, variant: Variant = FULL, dtype: DType = DType.BF16
) -> Workload:
    return Workload(Problem(dtype, d_head, batch, heads, heads, n, n), variant)


def test_a_measured_grid_keeps_its_ranking() -> None:
    for entry in ENTRIES:
        measured = [(row.config, row) for row in entry.choices]
        found = best_first(entry, TABLE.portfolio(entry), entry.workload, SMS)
        assert found == (measured, False)
        for row in entry.choices:
            ms = carried_over_ms(row, entry.workload, entry.workload, SMS)
            assert ms is None or ms == pytest.approx(row.cost)


@pytest.mark.parametrize(
    ("asked", "rows_of_a_tile"),
    [
        (workload(64, 2, 12, 900, dtype=DType.FP16), 192),  # 120 tiles, or 96 of 256 rows
        (workload(64, 2, 16, 1000, dtype=DType.FP16), 256),  # 128 tiles, or 192 of 192 rows
    ],
    ids=str,
)
def test_tiles_that_fit_the_grid_are_taken(asked: Workload, rows_of_a_tile: int) -> None:
    assert choose_for(FORWARD, asked, H200).config.B_r == rows_of_a_tile


def test_24_causal_heads_are_one_group() -> None:
    """Groups of 16 would start the long tiles of the last eight heads when most SMs are done."""
    choice = choose_for(FORWARD, workload(64, 1, 24, 1300, CAUSAL), H200)
    assert choice.is_predicted and choice.config.heads_per_group >= 24
    fastest = choice.entry.choices[0].config if choice.entry else None
    assert fastest and fastest.heads_per_group == 16
    for n in (1000, 1500, 2000, 2500):
        choice = choose_for(FORWARD, workload(128, 1, 24, n, CAUSAL), H200)
        assert choice.entry and choice.config.heads_per_group >= 24


def test_a_small_grid_of_fp16_takes_what_bf16_has_for_it() -> None:
    """The table has FP16 for full grids alone, where groups of 16 heads are as fast as one."""
    choice = choose_for(FORWARD, workload(64, 3, 12, 725, CAUSAL, DType.FP16), H200)
    assert choice.entry and choice.entry.workload.dtype == DType.BF16
    assert choice.config.dtype == DType.FP16 and choice.config.heads_per_group >= 36


def test_the_prediction_is_of_the_fastest_and_counts_from_a_clear_difference_on() -> None:
    draw = random.Random(4)
    predicted = 0
    for _ in range(200):
        entry = draw.choice(ENTRIES)
        n, heads = draw.randint(100, 9000), draw.randint(1, 64)
        asked = workload(entry.workload.d_head, 1, heads, n, entry.workload.variant)
        portfolio = TABLE.portfolio(entry)
        found, is_predicted = best_first(entry, portfolio, asked, SMS)
        times = {
            config: carried_over_ms(row, entry.workload, asked, SMS, config)
            for config, row in candidates(entry, portfolio)
        }
        first = carried_over_ms(entry.choices[0], entry.workload, asked, SMS)
        assert first is not None and set(times) <= set(portfolio)
        if not is_predicted:
            assert [row for _, row in found] == list(entry.choices)
            assert all(ms is not None and ms >= CLEARLY * first for ms in times.values())
            continue
        predicted += 1
        in_order = [times[config] for config, _ in found]
        assert len(found) == len(times) and in_order == sorted(in_order, key=lambda ms: ms or 0)
        assert in_order[0] is not None and in_order[0] < CLEARLY * first
    assert 20 < predicted < 180


def test_tiles_are_taken_in_an_order_that_only_another_bucket_needs() -> None:
    choice = choose_for(FORWARD, workload(96, 1, 24, 2000, CAUSAL), H200)
    assert choice.is_predicted and choice.entry and choice.measured
    measured = choice.measured.config
    assert choice.config.heads_per_group == 32 and measured.heads_per_group == 64
    assert choice.config.in_no_order() == measured.in_no_order()
    assert choice.config not in [row.config for row in choice.entry.choices]
    assert choice.source and choice.config in choice.source.table.portfolio(choice.entry)


def test_windows_and_packed_sequences_take_what_was_measured() -> None:
    for variant in (Variant(causal=True, window=True), Variant(varlen=True)):
        choice = choose_for(FORWARD, workload(128, 1, 24, 1000, variant), H200)
        assert not choice.is_predicted


def test_short_tiles_of_a_window_have_few_keys_at_a_time_and_a_deep_ring() -> None:
    """Kernels of 128 keys at a time are as fast at d 64, but not under a window of 128."""
    for n in (1551, 5190, 15766):
        problem = Problem(DType.BF16, 64, 2, 64, 8, n, n)
        choice = choose_for(FORWARD, Workload(problem, Variant(causal=True, window=True)), H200)
        assert isinstance(choice.config, Sm90ForwardKernelConfig)
        assert (choice.config.B_c, choice.config.n_stages) == (64, 6)


def test_a_window_reorders_only_what_is_not_clearly_slower() -> None:
    changed = 0
    for entry in ENTRIES:
        masked = replace(entry.workload.variant, window=True)
        asked = replace(entry.workload, variant=masked)
        found, is_predicted = best_first(entry, TABLE.portfolio(entry), asked, SMS)
        measured = [(row.config, row) for row in entry.choices]
        assert not is_predicted and sorted(map(str, found)) == sorted(map(str, measured))
        near = [row for row in entry.choices if CLEARLY * row.cost <= entry.choices[0].cost]
        ranks = [window_rank(row.config) for row in near]
        assert window_rank(found[0][0]) == min(ranks)
        assert found[len(near) :] == measured[len(near) :]
        changed += found != measured
    assert changed > 20


def test_all_that_is_predicted_is_listed_to_be_built() -> None:
    draw = random.Random(5)
    served = set(served_instances(H200))
    for _ in range(300):
        variant, dtype = draw.choice((FULL, CAUSAL)), draw.choice(tuple(DType))
        d_head = draw.choice((64, 96, 128, 192, 256))
        heads, n = draw.randint(1, 80), draw.randint(1, 20000)
        asked = workload(d_head, draw.randint(1, 8), heads, n, variant, dtype)
        assert KernelId(choose_for(FORWARD, asked, H200).config, variant) in served, asked
