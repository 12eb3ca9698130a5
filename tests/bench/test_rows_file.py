"""What the scripts in benchmarks/ write says of which kernels it is."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from flashsmith.jit import kernel_source_stamp
from flashsmith.lab.bench.provenance import kernels_note, stamp_of
from support.paths import ROOT

SCRIPTS = [
    path for path in sorted((ROOT / "benchmarks").glob("*.py")) if '"--out"' in path.read_text()
]


def test_a_stamp_stands_beside_the_file_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    path = tmp_path / "decode.csv"
    path.write_text("candidate\nflashsmith\n")
    importlib.import_module("rows_file").write_stamp(path, "cpu", fa3="1.0")
    assert (tmp_path / "decode_environment.json").is_file()
    assert stamp_of(path)["fa3"] == "1.0"
    assert kernels_note(path, kernel_source_stamp()) == ""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_benchmark_writes_a_stamp(script: Path) -> None:
    text = script.read_text()
    assert "write_stamp(arg" in text or "environment_stamp(" in text
