"""Folders with tuned tables that belong to the tests alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flashsmith.configs import (
    get_sm90_autotuning_kernel_configs,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.problem import LENGTH_BUCKETS
from flashsmith.selection import tables
from flashsmith.selection.choose import forget_tables
from flashsmith.selection.tables import (
    Table,
    shipped_table_path,
)
from support.tables import (
    H200,
    STAMP,
    make_entry,
)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a table for the H200 that covers every dtype, mask and length."""
    folder = tmp_path_factory.mktemp("shipped")
    sm90 = get_sm90_autotuning_kernel_configs(d_heads=(64, 128))
    firsts = {(cfg.dtype, cfg.d_head): cfg for cfg in reversed(sm90)}
    Table.of(
        FORWARD,
        STAMP,
        [
            make_entry([cfg], bucket, mask)
            for cfg in firsts.values()
            for bucket in LENGTH_BUCKETS
            for mask in ("full", "causal")
        ],
    ).write(folder / shipped_table_path(H200).name)
    return folder


@pytest.fixture
def own_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields the folder of the user's tables, which is empty at first."""
    monkeypatch.setenv("FLASHSMITH_TUNED", str(tmp_path))
    forget_tables()
    yield tmp_path
    forget_tables()


@pytest.fixture
def tuned(own_tables: Path, monkeypatch: pytest.MonkeyPatch, shipped: Path) -> Path:
    """Returns ``own_tables``, with the tests' own table in place of the shipped one."""
    monkeypatch.setattr(tables, "_SHIPPED", shipped)
    forget_tables()
    return own_tables
