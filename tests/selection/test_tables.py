"""Stamps: the tables that may be used here, and stamps that lack a field."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from flashsmith.configs import (
    KernelConfig,
    get_autotuning_kernel_configs,
    get_sm90_autotuning_kernel_configs,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.errors import TuningError
from flashsmith.gpus import get_gpu_architecture
from flashsmith.lab.tuning.journal import Journal
from flashsmith.problem import LENGTH_BUCKETS
from flashsmith.selection import table_text
from flashsmith.selection.choose import find_tables, forget_tables
from flashsmith.selection.tables import (
    Table,
    gpu_slug,
    mismatches,
    shipped_table_path,
    shipped_table_paths,
    user_table_path,
)
from support.paths import ROOT
from support.tables import (
    H200,
    SM90,
    SMALL,
    STAMP,
    make_entry,
)
from support.workloads import square

SHIPPED = pytest.mark.parametrize("path", shipped_table_paths(), ids=lambda path: path.stem)
FIELDS = ("gpu", "driver_version", "kernels_sm80", "kernels_sm90")


@pytest.mark.parametrize("field", FIELDS)
def test_stamp_that_lacks_a_field_agrees_with_nothing(field: str) -> None:
    assert mismatches(STAMP, STAMP) == []
    lacking = {name: value for name, value in STAMP.items() if name != field}
    (said,) = mismatches(lacking, STAMP)
    assert said.endswith(f": not recorded there, {STAMP[field]} here")
    assert mismatches(STAMP, lacking) == []  # a field that is unknown here is not compared
    (said,) = mismatches(lacking, STAMP | {field: ""})
    assert "not recorded there" in said


@pytest.mark.parametrize("field", FIELDS)
def test_journal_that_lacks_a_field_is_refused(field: str, tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, {name: value for name, value in STAMP.items() if name != field})
    with pytest.raises(TuningError, match="not recorded there"):
        Journal(path, STAMP)


@pytest.mark.parametrize("family", ["sm80", "sm90"])
def test_only_the_families_in_a_table_have_to_be_the_same(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHSMITH_TUNED", str(tmp_path))
    config = SMALL if family == "sm80" else SM90
    other = "sm90" if family == "sm80" else "sm80"

    def title_after(stamp: dict[str, str]) -> list[str]:
        Table.of(FORWARD, stamp, [make_entry([config])]).write(user_table_path(H200))
        forget_tables()
        return [source.title for source in find_tables(FORWARD, H200)[0]]

    lacks = {name: value for name, value in STAMP.items() if name != f"kernels_{other}"}
    assert "your table" in title_after(lacks | {f"kernels_{other}": "of others"})
    assert "your table" in title_after(lacks)
    for stamp in (
        STAMP | {f"kernels_{family}": "of others"},
        {name: value for name, value in STAMP.items() if name != f"kernels_{family}"},
        {name: value for name, value in STAMP.items() if name != "gpu"},
    ):
        with pytest.warns(UserWarning, match="is not for here"):
            assert "your table" not in title_after(stamp)
    forget_tables()


# ---- tables in the package ----


@SHIPPED
def test_shipped_table_is_whole(path: Path) -> None:
    table = Table.read(path)
    assert shipped_table_path(table.stamp["gpu"]) == path
    for entry in table.entries.values():
        costs = [row.cost for row in entry.ranked]
        assert costs == sorted(costs)
        best, served = entry.ranked[0].config, FORWARD.serving(entry.workload, table.stamp["gpu"])
        assert not served.why_not(best)
    kinds = {key[:2] for key in table.entries}
    for dtype, d_head in kinds:
        for mask in ("full", "causal"):
            for bucket in LENGTH_BUCKETS:
                workload = square(dtype, d_head, mask, 64, 64, bucket)  # it fills any GPU
                assert table.key_of(workload) in table.entries


@SHIPPED
def test_each_kernel_of_a_table_is_checked_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in a row of each shape for which it is fast."""
    checked: list[KernelConfig] = []
    is_buildable = KernelConfig.is_buildable

    def counted(config: KernelConfig) -> bool:
        checked.append(config)
        return is_buildable(config)

    monkeypatch.setattr(KernelConfig, "is_buildable", counted)
    table_text._is_buildable.cache_clear()
    Table.read(path)
    assert checked and len(checked) == len(set(checked))


@SHIPPED
def test_shipped_table_names_kernels_of_the_tuning_space(path: Path) -> None:
    table = Table.read(path)
    families = FORWARD.families_on(get_gpu_architecture(table.stamp["gpu"]).compute_capability)
    space = {*get_autotuning_kernel_configs(d_heads=(64, 128))}
    space |= {*get_sm90_autotuning_kernel_configs()} if SM90_FORWARD in families else set()
    for entry in table.entries.values():
        heuristic = FORWARD.serving(entry.workload, table.stamp["gpu"]).heuristic_config
        assert {row.config for row in entry.ranked} <= space | {heuristic}


@SHIPPED
def test_shipped_table_was_measured_on_the_kernels_that_it_comes_with(path: Path) -> None:
    """If this fails, kernels have changed: tune anew on that GPU (`flashsmith tune`)."""
    table = Table.read(path)
    assert mismatches(table.stamp, table.requirements(table.stamp["gpu"])) == []


@SHIPPED
def test_shipped_table_names_kernels_with_a_clean_soak_in_the_results(path: Path) -> None:
    """`flashsmith soak table` on that GPU writes such a file."""
    table = Table.read(path)
    logs = (ROOT / "benchmarks" / "results" / gpu_slug(table.stamp["gpu"])).glob("*/soak/*.csv")
    rows = [row for log in logs for row in csv.DictReader(log.open())]
    assert {row["verdict"] for row in rows} == {"ok"}
    soaked = {(row["kernel"], row["variant"]) for row in rows}
    entries = table.entries.values()
    assert {
        (str(row.config), e.workload.variant.name) for e in entries for row in e.ranked
    } <= soaked
