"""examples/quick_start.ipynb runs cell by cell, and is committed without what it printed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from support.paths import ROOT

NOTEBOOK = ROOT / "examples" / "quick_start.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


def run(cells: list[str]) -> None:
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"cell {number}", "exec"), names)


def test_every_cell_runs_after_those_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    run(CODE)
    assert "(1, 64, 4, 64) (1, 4, 64)" in capsys.readouterr().out


def test_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len([cell for cell in CODE if "assert " in cell]) >= 4
    spoiled = [CODE[0] + "\no = o * 1.1", *CODE[1:]]
    with pytest.raises(AssertionError):
        run(spoiled)


def test_it_holds_nothing_of_a_machine() -> None:
    text = NOTEBOOK.read_text()
    assert not re.search(r'"(/|\w:\\\\)[\w/]+|/(home|root|tmp|work)/', text)
    for cell in CELLS:
        assert cell.get("outputs", []) == [] and cell.get("execution_count") is None
    assert text == json.dumps(json.loads(text), indent=1) + "\n"
