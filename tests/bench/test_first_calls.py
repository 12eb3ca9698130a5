"""The benchmark of first calls in its small form, on the emulator."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from flashsmith import settings
from support.scripts import load_script

pytest.importorskip("transformers", reason="pip install 'flashsmith[transformers]'")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv(settings.BACKGROUND_BUILD.name, "")  # the script sets it
    return load_script("benchmarks/first_calls.py")


def run(script: ModuleType, out: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Runs the small benchmark with the tests' kernel cache, and returns its rows."""
    cache = settings.cache_folder()
    monkeypatch.setenv(settings.CACHE_DIR.name, str(cache))  # the script sets it
    script.main(["--small", "--out", str(out), "--cache", str(cache)])
    with (out / "first_calls.csv").open() as file:
        return list(csv.DictReader(file))


def test_rows_of_calls_and_tokens(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = run(script, tmp_path, monkeypatch)
    tokens = ["2 tokens", "4 tokens"]
    calls = ["first call of a shape"] * 4
    assert [row["work"] for row in rows] == [*tokens, *calls, *tokens, *["4 tokens"] * 2]
    assert [row["candidate"] for row in rows] == ["sdpa"] * 2 + ["flashsmith"] * 6 + [
        "sdpa",
        "flashsmith",
    ]
    assert all(float(row["seconds"]) > 0 for row in rows)
    for before, after in ((0, 6), (1, 7), (8, 9)):
        sdpa, ours = rows[before], rows[after]
        ratio = float(ours["seconds"]) / float(sdpa["seconds"])
        assert float(ours["of_sdpa"]) == pytest.approx(ratio, abs=1e-3)
        assert 0 <= float(ours["error"]) < 0.05
    stamp = json.loads((tmp_path / "first_calls_environment.json").read_text())
    assert stamp["gpu"] == "none (emulator)" and stamp["cache"] == "given"


def test_the_whole_form_has_112_shapes(script: ModuleType) -> None:
    shapes = list(script.Sizes().shapes)
    assert len(shapes) == len(set(shapes)) == 112


def test_a_wrong_result_is_said(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(script.flashsmith, "attention", lambda q, k, v, causal: torch.zeros_like(q))
    run(script, tmp_path, monkeypatch)
    said = capsys.readouterr().out
    assert said.count("WRONG: the error is 1 of the largest element") == 4
