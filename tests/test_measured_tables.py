"""Numbers in README and docs are those of the CSV files that were committed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from bench_helpers import FITTING, time_row
from flashsmith.bench.results import TimeRow, to_csv

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = ROOT / "tools" / "docs" / "measured_tables.py"
    spec = importlib.util.spec_from_file_location("measured_tables", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_pages_say_what_was_measured(tool: ModuleType) -> None:
    for page in tool.PAGES:
        text = page.read_text()
        assert "<!-- measured: " in text, page
        assert text.count("<!-- measured: ") == text.count("<!-- end measured -->"), page
        assert tool.rewrite(text) == text, f"python {tool.__file__} writes {page} anew"


def marked(name: str, kind: str = "ratios", table: str = "old") -> str:
    return f"before\n<!-- measured: {kind} {name} -->\n{table}\n<!-- end measured -->\nafter\n"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with two runs: ours 1.25 times, and 2 times as fast as the best peer."""
    for name, ratio in (("first", 1.25), ("second", 2.0)):
        rows = [time_row("fa2", 1.0), time_row(FITTING, 1 / ratio, ratio_to_best_peer=ratio)]
        (tmp_path / name).mkdir()
        (tmp_path / name / "forward.csv").write_text(to_csv(TimeRow, rows))
    return tmp_path


def test_a_table_is_made_from_the_file_that_its_mark_names(tool: ModuleType, results: Path) -> None:
    text = tool.rewrite(marked("first/forward.csv"), results)
    assert "| d 64, full | 1.25 | **1.250** |" in text
    assert "old" not in text
    assert text.startswith("before\n<!-- measured: ratios first/forward.csv -->\n\n| ratio to ")
    assert text.endswith("|\n\n<!-- end measured -->\nafter\n")
    assert tool.rewrite(text, results) == text
    sentence = tool.rewrite(marked("first/forward.csv", "summary"), results)
    assert "Geometric mean of 1 shapes: **1.250**; least: 1.250 (FP16 d 64 full" in sentence


def test_another_run_is_taken_by_its_folder(tool: ModuleType, results: Path) -> None:
    both = marked("first/forward.csv") + "between\n" + marked("first/forward.csv", "rates")
    text = tool.rewrite(both, results, Path("second"))
    assert re.findall(r"measured: (\w+) (\S+)", text) == [
        ("ratios", "second/forward.csv"),
        ("rates", "second/forward.csv"),
    ]
    assert "| d 64, full | 2.00 | **2.000** |" in text
    assert "| 64 full | best peer | 0 FA2 |" in text
    assert "between" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (marked("first/forward.csv", "prices"), "'prices' is not known; supported: ratios"),
        (marked("third/forward.csv"), "third/forward.csv, which is no file"),
        (marked("peers.csv"), "peers.csv has no row with a ratio"),
    ],
)
def test_a_mark_that_cannot_be_served_is_named(
    text: str, message: str, tool: ModuleType, results: Path
) -> None:
    (results / "peers.csv").write_text(to_csv(TimeRow, [time_row("fa2", 1.0)]))
    with pytest.raises(ValueError, match=message):
        tool.rewrite(text, results)
