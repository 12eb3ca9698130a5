"""Portfolios: a few kernels for each d_head and variant, in cases where the best set is known."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from flashsmith.configs import (
    DType,
    FlashForwardKernelConfig,
    ForwardKernelConfig,
    Workload,
    get_autotuning_kernel_configs,
    get_sm90_autotuning_kernel_configs,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.lab.bench.timer import Timing
from flashsmith.lab.tuning import portfolio as portfolio_module
from flashsmith.lab.tuning.portfolio import (
    MAX_KERNELS,
    TOLERANCE,
    pick,
    portfolios_of,
    with_portfolios,
)
from flashsmith.lab.tuning.unmeasured import MAX_ADDED
from flashsmith.selection.entries import Entry, Measured
from flashsmith.selection.tables import Table, shipped_table_paths
from support.tuning import SPACE, STAMP, WORKLOAD, WORKLOADS, FakeLab, kernels_of, tune
from support.workloads import changed, square

A, B, C, D, E = get_autotuning_kernel_configs([DType.FP16])[:5]
LENGTHS = (512, 1024, 2048, 4096)


def entry_of(
    costs: Mapping[ForwardKernelConfig, float], length: int, dtype: DType = DType.FP16
) -> Entry:
    rows = [Measured(cfg.for_dtype(dtype), ms, ms, ms, 1.0) for cfg, ms in costs.items()]
    ranked = tuple(sorted(rows, key=lambda row: row.ms))
    workload = square(dtype, 128, "full", 64, 64, length)
    return Entry(workload, len(rows), {}, None, ranked)


def table_of(
    *costs: Mapping[ForwardKernelConfig, float], dtypes: Sequence[DType] = (DType.FP16,)
) -> Table:
    entries = [
        entry_of(each, n, dtype)
        for dtype in dtypes
        for n, each in zip(LENGTHS, costs, strict=False)
    ]
    return Table.of(FORWARD, STAMP, entries)


def chosen_of(table: Table) -> set[ForwardKernelConfig]:
    (portfolio,) = portfolios_of(with_portfolios(table))
    return set(portfolio.tiles)


def test_one_kernel_is_enough_where_it_is_nearly_the_best_everywhere() -> None:
    table = table_of({A: 1.0, B: 1.009}, {B: 1.0, C: 1.2}, {C: 1.0, B: 1.005})
    assert chosen_of(table) == {B}


def test_a_second_is_taken_only_where_one_loses_more_than_the_tolerance() -> None:
    assert chosen_of(table_of({A: 1.0, B: 1.011}, {B: 1.0, A: 2.0})) == {A, B}


@pytest.fixture
def _three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits a portfolio to three kernels, so that some must be left out."""
    monkeypatch.setattr(portfolio_module, "MAX_KERNELS", 3)


@pytest.mark.usefixtures("_three")
def test_the_least_is_lost_where_three_are_not_enough() -> None:
    """Each of four kernels is the best somewhere; leaving out D costs 5%, any other 20%."""
    rest = {A: 1.2, B: 1.2, C: 1.2, D: 1.2}
    table = table_of(*({**rest, best: 1.0} for best in (A, B, C)), {**rest, A: 1.05, D: 1.0})
    portfolio = portfolios_of(with_portfolios(table))[0]
    assert set(portfolio.tiles) == {A, B, C}
    assert portfolio.worst_loss == pytest.approx(0.05)
    ((key, loss),) = portfolio.beyond_tolerance.items()
    assert key.bucket.seq_len_k == 4096 and loss == pytest.approx(0.05)


@pytest.mark.usefixtures("_three")
def test_a_kernel_that_is_best_nowhere_may_be_the_best_of_few() -> None:
    """E is 2% behind at two shapes whose best kernels are useless at the other."""
    table = table_of(
        {A: 1.0, E: 1.02}, {B: 1.0, E: 1.02}, {C: 1.0, A: 1.5, B: 1.5}, {D: 1.0, A: 1.5}
    )
    assert chosen_of(table) == {C, D, E}


@pytest.mark.usefixtures("_three")
def test_no_entry_is_left_without_a_kernel_if_one_can_serve_it() -> None:
    table = table_of({A: 1.0, D: 3.0}, {B: 1.0, D: 3.0}, {C: 1.0}, {E: 1.0})
    assert chosen_of(table) == {C, D, E}
    whole = with_portfolios(table_of({A: 1.0}, {B: 1.0}, {C: 1.0}, {D: 1.0}))
    losses = portfolios_of(whole)[0].losses.values()
    assert sorted(losses) == [0.0, 0.0, 0.0, math.inf]


def test_dtypes_share_tiles() -> None:
    sm90 = [c for c in get_sm90_autotuning_kernel_configs([DType.BF16], [128]) if c.stale_maximum]
    table = table_of({sm90[0]: 1.0, A: 2.0}, {sm90[1]: 1.0, A: 2.0}, dtypes=tuple(DType))
    portfolio = portfolios_of(with_portfolios(table))[0]
    assert set(portfolio.tiles) == {cfg.for_dtype(DType.FP16) for cfg in sm90[:2]}
    assert portfolio.worst_loss == 0 and len(portfolio.losses) == 4


def test_masks_and_d_heads_have_portfolios_of_their_own() -> None:
    full, causal = entry_of({A: 1.0}, 512), entry_of({B: 1.0}, 512)
    causal = replace(causal, workload=square(DType.FP16, 128, "causal", 64, 64, 512))
    found = portfolios_of(with_portfolios(Table.of(FORWARD, STAMP, [full, causal])))
    assert [(each.variant, each.tiles) for each in found] == [("causal", (B,)), ("full", (A,))]


def test_measurements_stay_and_only_the_portfolio_may_serve() -> None:
    table = table_of({A: 1.0, B: 1.009, C: 1.1}, {B: 1.0, A: 1.2})
    restricted = with_portfolios(table)
    for key, entry in table.entries.items():
        after = restricted.entries[key]
        assert [row.config for row in after.ranked] == [row.config for row in entry.ranked]
        assert [row.config for row in after.choices] == [B]
    assert with_portfolios(restricted) == restricted


def test_a_set_is_the_best_of_all_sets() -> None:
    """The set is compared with the best of all sets, found by trying each."""
    random.seed(0)
    for _ in range(20):
        losses = {
            cfg: tuple(random.choice((0.0, 0.005, 0.02, 0.1, math.inf)) for _ in range(6))
            for cfg in SPACE[:9]
        }
        losses[SPACE[9]] = (0.3,) * 6  # every row has a kernel

        def worst(tiles: Sequence[ForwardKernelConfig], of: dict = losses) -> float:  # type: ignore[type-arg]
            return max(min(of[cfg][i] for cfg in tiles) for i in range(6))

        found = pick(losses)
        minimum = {n: min(map(worst, combinations(losses, n))) for n in range(1, MAX_KERNELS + 1)}
        enough = [n for n, loss in minimum.items() if loss <= TOLERANCE]
        assert len(found) == (min(enough) if enough else MAX_KERNELS)
        assert worst(found) == minimum[len(found)]


def test_many_kernels_are_looked_at_in_seconds() -> None:
    random.seed(0)
    many = [*SPACE, *get_sm90_autotuning_kernel_configs([DType.FP16])]
    losses = {cfg: tuple(random.random() for _ in range(36)) for cfg in many}
    assert len(pick(losses)) == MAX_KERNELS


def test_the_tuner_writes_portfolios_and_chooses_anew_when_entries_are_added(
    tmp_path: Path,
) -> None:
    out = tmp_path / "t.csv"
    shapes = [square(DType.FP16, 128, "full", 4, 16, n) for n in (512, 4096)]
    tune(out, FakeLab(), shapes[:1])
    tune(out, FakeLab(), shapes[1:])
    table = Table.read(out)
    assert len(table.entries) == 2
    assert all(len(entry.choices) == 1 < len(entry.ranked) for entry in table.entries.values())
    assert with_portfolios(table) == table


def test_what_won_elsewhere_is_timed_to_the_end(tmp_path: Path) -> None:
    """A portfolio needs its times. A kernel that wins with another mask or d_head stays out."""
    slow = SPACE[30]

    class Uneven(FakeLab):
        """A lab with a kernel that is the best with one mask at one length, and bad everywhere
        else."""

        def time(self, workload: Workload, *args: Any) -> dict[FlashForwardKernelConfig, Timing]:
            times = super().time(workload, *args)
            best = workload == WORKLOADS[0]
            return times | ({slow: Timing(*[0.5 if best else 9.0] * 3)} if slow in times else {})

    causal = changed(WORKLOAD, mask="causal")
    table = tune(tmp_path / "t.csv", Uneven(), [causal, *WORKLOADS])
    first, second, other = (kernels_of(table, each) for each in (*WORKLOADS, causal))
    assert first[0] == slow and second[-1] == slow
    assert slow not in other


@pytest.mark.parametrize("path", shipped_table_paths(), ids=lambda path: path.stem)
def test_a_shipped_table_chooses_from_portfolios(path: Path) -> None:
    table = Table.read(path)
    portfolios = portfolios_of(table)
    assert with_portfolios(table) == table
    assert all(1 <= len(each.tiles) <= MAX_KERNELS + MAX_ADDED for each in portfolios)
    assert max(each.worst_loss for each in portfolios) < 0.03
