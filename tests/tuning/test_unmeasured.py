"""Kernels that a table has for grids between the measured ones."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from flashsmith.configs import FULL, DType, Sm90ForwardKernelConfig, Workload
from flashsmith.configs.registry import FORWARD
from flashsmith.configs.sm90.forward_space import get_sm90_autotuning_kernel_configs
from flashsmith.gpus import count_sms
from flashsmith.lab.tuning.unmeasured import MAX_ADDED, Grids, workloads_between
from flashsmith.problem import Problem
from flashsmith.selection.entries import Entry, Measured
from flashsmith.selection.tables import Table, shipped_table_paths
from support.tuning import STAMP

SMS = 132
BY_ROWS = {
    cfg.B_r: cfg
    for cfg in reversed(get_sm90_autotuning_kernel_configs([DType.FP16], [64]))
    if cfg.persistent and cfg.heads_per_group == 0
}


def table_of(*rows: tuple[Sm90ForwardKernelConfig, float]) -> Table:
    """Returns a table with one entry, of 16 x 32 heads and 1024 queries."""
    ranked = [Measured(cfg, ms, ms, ms, 1.0) for cfg, ms in sorted(rows, key=lambda row: row[1])]
    measured = Workload(Problem(DType.FP16, 64, 16, 32, 32, 1024, 1024), FULL)
    return Table.of(FORWARD, STAMP, [Entry(measured, 9, {}, None, tuple(ranked))])


@pytest.mark.parametrize("path", shipped_table_paths(), ids=lambda path: path.stem)
def test_workloads_between_are_of_their_entry_and_not_measured(path: Path) -> None:
    table = Table.read(path)
    num_sms = count_sms(table.stamp["gpu"])
    measured = {entry.workload for entry in table.entries.values()}
    for key, entry in table.entries.items():
        found = list(workloads_between(entry.workload, key, num_sms))
        assert len(found) >= 1 and not measured & set(found)
        assert all(each.tuning_key(num_sms) == key for each in found)


def test_a_kernel_is_added_that_other_grids_need() -> None:
    """Tiles of 256 rows are faster by a tenth at 1024 queries; other lengths are fewer tiles of
    192."""
    table = table_of((BY_ROWS[256], 1.0), (BY_ROWS[192], 1.1))
    grids = Grids(table.entries, SMS)
    assert grids.extended([BY_ROWS[256]]) == [BY_ROWS[256], BY_ROWS[192]]
    assert grids.mean_loss([BY_ROWS[256]]) > grids.mean_loss([BY_ROWS[256], BY_ROWS[192]]) == 0


def test_a_kernel_that_no_grid_needs_is_not_added() -> None:
    table = table_of((BY_ROWS[256], 1.0), (BY_ROWS[192], 2.0))
    grids = Grids(table.entries, SMS)
    assert grids.mean_loss([BY_ROWS[256]]) == 0
    assert grids.extended([BY_ROWS[256]]) == [BY_ROWS[256]]


def test_few_kernels_are_added() -> None:
    """At most two kernels are added, even if each of many is the best at some grid."""
    kernels = get_sm90_autotuning_kernel_configs([DType.FP16], [64])[:40]
    table = table_of(*((cfg, 1.0 + i / 1000) for i, cfg in enumerate(kernels)))
    assert len(Grids(table.entries, SMS).extended(kernels[:1])) <= 1 + MAX_ADDED


def test_no_kernel_at_a_grid_is_an_infinite_loss() -> None:
    grids = Grids(table_of((BY_ROWS[256], 1.0)).entries, SMS)
    assert grids.mean_loss([]) == math.inf
