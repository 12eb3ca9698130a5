"""The programs in benchmarks/ write each row at once, and say which kernels they measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashsmith.jit import kernel_source_stamp
from flashsmith.lab.bench.provenance import kernels_note, stamp_of
from flashsmith.lab.bench.rows_file import recorded, write_stamp
from support.paths import ROOT

SCRIPTS = [
    path
    for path in sorted((ROOT / "benchmarks").glob("*.py"))
    if "__main__" in path.read_text() and path.stem != "first_result_steps"  # of first_result.py
]


def test_a_stamp_stands_beside_the_file_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "decode.csv"
    path.write_text("candidate\nflashsmith\n")
    write_stamp(path, "cpu", fa3="1.0")
    assert (tmp_path / "decode_environment.json").is_file()
    assert stamp_of(path)["fa3"] == "1.0"
    assert kernels_note(path, kernel_source_stamp()) == ""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_benchmark_writes_a_stamp(script: Path) -> None:
    text = script.read_text()
    assert any(writer in text for writer in ("run_program(", "write_stamp(", "environment_stamp("))


def test_what_is_measured_is_kept_if_the_next_fails(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    measured = ({"us": 1 // (2 - i)} for i in range(3))
    with pytest.raises(ZeroDivisionError):
        for _ in recorded(path, ["us"], measured):
            pass
    assert path.read_text().splitlines() == ["us", "0", "1"]
    # Rows are written while the measurement runs, so that a reader sees the rows that exist.
    rows = recorded(path, ["us"], iter([{"us": 5}, {"us": 6}]))
    assert next(rows) == {"us": 5}
    assert path.read_text().splitlines() == ["us", "5"]
