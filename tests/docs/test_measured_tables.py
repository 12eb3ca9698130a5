"""Numbers in README and docs are those of the committed CSV files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from flashsmith.jit import kernel_source_stamp
from flashsmith.lab.bench import provenance
from flashsmith.lab.bench.results import TimeRow, to_csv
from support.bench import FITTING, time_row
from support.paths import ROOT
from support.scripts import load_script

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_script("tools/docs/measured_tables.py")


def test_committed_pages_say_what_was_measured(tool: ModuleType) -> None:
    assert {"README.md", "performance.md", "fp8.md", "score-mod.md"} <= {
        page.name for page in tool.PAGES
    }
    for page in tool.PAGES:
        text = page.read_text()
        assert text.count("<!-- measured: ") == text.count("<!-- end measured -->"), page
        assert tool.rewrite(text) == text, f"python {tool.__file__} writes {page} anew"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_table_is_marked_once_kernels_change(
    page: Path, tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, others = page.read_text(), dict.fromkeys(kernel_source_stamp(), "other")
    monkeypatch.setattr(provenance, "kernel_source_stamp", lambda: others)
    tables = [found[0] for found in tool._BLOCK.finditer(tool.rewrite(text))]
    assert len(tables) == text.count("<!-- measured: ")
    assert [table for table in tables if not re.search(r"^\*Measured 2", table, re.M)] == []
    assert [table for table in tables if "on today's kernels" in table] == []


def marked(name: str, kind: str = "ratios", table: str = "old") -> str:
    return f"before\n<!-- measured: {kind} {name} -->\n{table}\n<!-- end measured -->\nafter\n"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Returns a folder with two runs, in which ours is 1.25 times and 2 times as fast as the best
    peer."""
    stamp = json.dumps(kernel_source_stamp() | {"date": "2026-01-01"})
    for name, ratio in (("first", 1.25), ("second", 2.0)):
        rows = [time_row("fa2", 1.0), time_row(FITTING, 1 / ratio, ratio_to_best_peer=ratio)]
        (tmp_path / name).mkdir()
        (tmp_path / name / "forward.csv").write_text(to_csv(TimeRow, rows))
        (tmp_path / name / "environment.json").write_text(stamp)
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


def test_a_table_says_when_its_kernels_are_others(tool: ModuleType, results: Path) -> None:
    (results / "first" / "environment.json").unlink()
    text = tool.rewrite(marked("first/forward.csv"), results)
    assert " by a run that did not record its sm80 forward kernels.*\n\n<!-- end" in text
    other = {"date": "2026-01-02", "kernels_sm80": "0"}
    (results / "first" / "environment.json").write_text(json.dumps(other))
    note = "*Measured 2026-01-02 on other sm80 forward kernels than today's.*"
    assert f"|\n\n{note}\n\n<!-- end" in tool.rewrite(marked("first/forward.csv"), results)
    assert note in tool.rewrite(marked("first/forward.csv", "kernels"), results)
    named = marked("first/forward.csv", "kernels_sm90_decode+kernels_sm80_decode")
    assert "did not record its sm90 decode and sm80 decode kernels" in tool.rewrite(named, results)


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
        (marked("first/forward.csv", "kernels_sm70"), "supported: kernels_sm80, "),
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


def test_the_best_kernels_of_a_sweep_are_in_percent_of_fa2(
    tool: ModuleType, tmp_path: Path
) -> None:
    columns = "kernel,d_head,mask,seq_len,percent_of_fa2"
    a, b = (f'"(FP16, 64, {rows}, 64, 4): async+load_0_0_0_tiles"' for rows in (64, 128))
    rows = ["FA2,64,full,512,100.0", f"{a},64,full,512,50.0", f"{b},64,full,512,80.0"]
    rows += [f"{a},64,full,1024,120.0", f"{a},128,causal,1024,99.0", "fa2,128,causal,1024,100.0"]
    (tmp_path / "tuning.csv").write_text("\n".join([columns, *rows]))
    text = tool.rewrite(marked("tuning.csv", "best"), tmp_path)
    assert "| d 64, full | 80.0 | 120.0 | **96.0** |" in text


def test_shapes_of_models_are_grouped_by_whatever_ways_of_use_a_file_has(
    tool: ModuleType, tmp_path: Path
) -> None:
    columns = "group,candidate,in_turn_of_best_peer,back_to_back_of_best_peer"
    old = ["training,flashsmith,2.000,1.000", "training,fa3,,", "training,flashsmith,0.500,1.000"]
    new = ["packed training,flashsmith,0.900,1.250", "packed training,fa2,,"]
    (tmp_path / "old.csv").write_text("\n".join([columns, *old]))
    (tmp_path / "new.csv").write_text("\n".join([columns, *old, *new]))
    training = "| training | 2 | 1.000 | 1 | 0.50 | 1.000 | 0 | 1.00 |"
    packed = "| packed training | 1 | 0.900 | 1 | 0.90 | 1.250 | 0 | 1.25 |"
    for name, rows in (("old", [training]), ("new", [training, packed])):
        text = tool.rewrite(marked(f"{name}.csv", "shapes_backward"), tmp_path)
        found = [line for line in text.splitlines() if line.startswith("| ")]
        assert found[2:-1] == rows and found[-1].startswith(f"| all | {1 + len(rows)} |")


def test_shapes_of_decode_are_in_a_graph_in_place_of_back_to_back(
    tool: ModuleType, tmp_path: Path
) -> None:
    columns = "group,candidate,in_turn_of_best_peer,back_to_back_of_best_peer,in_graph_of_best_peer"
    rows = ["decode,flashsmith,2.000,,1.500", "decode,fa3,,,", "decode,flashsmith,0.500,,1.500"]
    rows += ["decode,flashsmith all rows,1.000,,0.500"]
    (tmp_path / "decode.csv").write_text("\n".join([columns, *rows]))
    text = tool.rewrite(marked("decode.csv", "shapes_decode"), tmp_path)
    found = [line for line in text.splitlines() if line.startswith("| ")]
    assert found[0] == "|  | shapes | in turn | below 1 | least | in graph | below 1 | least |"
    assert found[2:] == [
        "| decode | 2 | 1.000 | 1 | 0.50 | 1.500 | 0 | 1.50 |",
        "| decode, all rows | 1 | 1.000 | 0 | 1.00 | 0.500 | 1 | 0.50 |",
        "| all | 3 | 1.000 | 1 | 0.50 | 1.040 | 1 | 0.50 |",
    ]


def test_first_results_are_after_the_imports_that_they_need(
    tool: ModuleType, tmp_path: Path
) -> None:
    """A candidate's first step counts with its import; of a second process it alone is shown."""
    head = "candidate,compilers,process,step,seconds,since_torch,error,failure\n"

    def steps(candidate: str, process: str, *named: str) -> str:
        rows = [(named[0], "9.0", "0.0"), ("import", "1.0", "1.0")]
        rows += [(step, "0.5", f"{1.5 + i / 2}") for i, step in enumerate(named[1:])]
        return "".join(f"{candidate},none,{process},{','.join(row)},,\n" for row in rows)

    both = [steps("ours", process, "torch", "a", "b") for process in ("first", "second")]
    (tmp_path / "first_result.csv").write_text(head + "".join(both))
    torch = steps("ours", "first", "torch", "c")  # a candidate that the first file has
    (tmp_path / "fa4.csv").write_text(head + torch + steps("fa4", "first", "torch", "b"))
    assert tool._of_first_results(tmp_path / "first_result.csv").splitlines() == [
        "| seconds | ours | fa4 |",
        "| --- | --- | --- |",
        "| torch | 9.00 | 9.00 |",
        "| import and a | 1.50 | - |",
        "| b | 0.50 | - |",
        "| import and b | - | 1.50 |",
        "| import and a, second process | 1.50 | - |",
    ]
