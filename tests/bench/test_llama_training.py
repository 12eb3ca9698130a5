"""benchmarks/llama_training.py: both attentions take the same training step of a model."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from support.scripts import load_script

pytest.importorskip("transformers")


def test_both_candidates_have_a_time_and_the_same_gradient(tmp_path: Path) -> None:
    load_script("benchmarks/llama_training.py").main(["--small", "--out", str(tmp_path)])
    with (tmp_path / "llama_training.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["candidate"] for row in rows] == ["flashsmith", "sdpa"]
    assert all(float(row["ms"]) > 0 for row in rows)
    assert float(rows[1]["of_sdpa"]) == 1
    assert 0 < float(rows[0]["error"]) < 0.05, "another attention, and the same result"
