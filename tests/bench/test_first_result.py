"""benchmarks/first_result.py: new processes, their steps, and how they fail."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from flashsmith import settings
from support.scripts import load_script

STEPS = (
    *("torch's first kernels", "import"),
    *("attention", "backward", "decode", "window and softcap", "score_mod"),
)


def measure(folder: Path, *words: str) -> tuple[int, list[dict[str, str]]]:
    script = load_script("benchmarks/first_result.py")
    status = script.main(["--small", "--out", str(folder), *words])
    with (folder / "first_result.csv").open() as file:
        return status, list(csv.DictReader(file))


def test_every_step_of_two_processes_is_timed_and_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.SHARED_CACHE.name, str(settings.cache_folder()))
    status, rows = measure(tmp_path, "--compilers", "--candidate", "flashsmith")
    assert status == 0
    assert [row["step"] for row in rows] == [*STEPS, *STEPS]
    assert [row["process"] for row in rows] == ["first"] * 7 + ["second"] * 7
    assert not any(row["failure"] for row in rows)
    for n in (0, 7):
        of_process = rows[n : n + 7]
        since = [float(row["since_torch"]) for row in of_process]
        assert since == sorted(since)
        seconds = [float(row["seconds"]) for row in of_process[1:]]
        assert since[-1] == pytest.approx(sum(seconds), abs=0.02)
        assert all(0 < float(row["error"]) < 0.02 for row in of_process[2:])
    stamp = json.loads((tmp_path / "first_result_environment.json").read_text())
    assert stamp["gpu"] == "none (emulator)" and int(stamp["cores"]) > 0


def test_a_candidate_without_what_it_needs_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(settings.SHARED_CACHE.name, raising=False)
    _, rows = measure(tmp_path, "--candidate", "flashsmith")  # no host library, and no compiler
    (attention, *_) = (row for row in rows if row["step"] == "attention")
    assert attention["compilers"] == "none"
    assert attention["failure"].startswith("ToolchainError: ")
    assert attention["error"] == ""


def test_a_process_that_ends_early_has_a_row(tmp_path: Path) -> None:
    _, rows = measure(tmp_path, "--python", "/bin/false", "--candidate", "torch")
    assert [row["step"] for row in rows] == ["process", "process"]
    assert rows[0]["failure"] == "the process ended with 1"


def test_a_wrong_result_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script("benchmarks/first_result.py")
    row = {"step": "attention", "seconds": "1", "error": "0.5"}
    monkeypatch.setattr(script, "steps_of", lambda *_: [row])
    assert script.main(["--small", "--out", str(tmp_path), "--candidate", "torch"]) == 1
