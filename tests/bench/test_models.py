"""benchmarks/models.py: its cases are the same everywhere, odd, and new to the tuned tables."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flashsmith.lab.bench.cases import Case, chosen
from flashsmith.lab.bench.operations import BENCHES
from flashsmith.lab.bench.operations.inputs import TOLERANCE
from flashsmith.lab.bench.program import run_program
from flashsmith.lab.bench.results import BACK_TO_BACK, IN_TURN
from flashsmith.lab.bench.runner import IN_GRAPH, CaseResult, Runner
from flashsmith.selection.tables import Table, shipped_table_paths
from support.scripts import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("benchmarks/models.py")


def test_the_same_cases_are_drawn_always(script: ModuleType) -> None:
    drawn = list(script.drawn_cases())
    assert list(script.drawn_cases()) == drawn
    assert str(drawn[0]) == "forward: BF16 d 128 causal 1 x 32/8 x 12458, training"
    assert 200 <= len(drawn) <= 250


def test_each_model_is_used_in_each_of_its_ways(script: ModuleType) -> None:
    found = {(case.name, case.group) for case in script.drawn_cases()}
    assert found == {(model.name, use) for model in script.MODELS for use in model.uses}
    windows = {case.window for case in script.cases()}
    assert windows == {0, 128, 1024, 4096}
    assert {case.cache for case in script.cases()} == {"", *script._CACHES}


def test_no_drawn_length_is_round(script: ModuleType) -> None:
    def is_odd(case: Case) -> bool:
        problem = case.workload.problem
        new = problem.seq_len_k - (problem.seq_len_q if case.group == "chunked prefill" else 0)
        return new % 64 != 0

    assert all(is_odd(case) for case in script.drawn_cases() if "pages" not in case.cache)


def packed_cases(script: ModuleType) -> list[Case]:
    return [case for case in script.drawn_cases() if case.lengths]


def test_the_same_lengths_of_packed_sequences_are_drawn_in_every_process(
    script: ModuleType,
) -> None:
    """Hashes of strings differ from process to process, so a seed made of one would draw other
    numbers than those that are written here."""
    cases = packed_cases(script)
    assert cases == packed_cases(script)
    assert cases[0].lengths == (2064, 75, 9713, 6494, 279)
    assert sum(sum(case.lengths) for case in cases) == 392131
    groups = Counter((case.operation, case.group) for case in cases)
    assert groups == {
        ("forward", "packed training"): 10,
        ("backward", "packed training"): 10,
        ("forward", "packed encoder"): 3,
    }
    assert chosen(script.cases(), "packed") == cases


def test_lengths_of_packed_sequences_are_in_their_ranges(script: ModuleType) -> None:
    models = {model.name: model for model in script.MODELS}
    for case in packed_cases(script):
        problem, lengths = case.workload.problem, case.lengths
        _, longest = models[case.name].lengths
        assert 4 <= len(lengths) <= 64 and 8000 <= sum(lengths) <= 40000
        assert min(lengths) >= 40 and max(lengths) <= longest
        assert all(n % 64 for n in lengths) and len(set(lengths)) > len(lengths) / 2
        assert problem.batch == len(lengths)
        assert problem.seq_len_q == problem.seq_len_k == max(lengths)
        assert case.workload.variant.causal == (case.group == "packed training")
        assert not case.window and not case.cache


def test_tensors_of_packed_sequences_have_their_lengths(script: ModuleType) -> None:
    for case in packed_cases(script):
        given: Any = BENCHES[case.operation].prepare(case, "meta")
        model = next(model for model in script.MODELS if model.name == case.name)
        total = sum(case.lengths)
        assert given.q.shape == given.do.shape == (total, model.heads, model.d_head)
        assert given.k.shape == given.v.shape == (total, model.heads_kv, model.d_head)
        assert given.packing["max_seqlen_q"] == given.packing["max_seqlen_k"] == max(case.lengths)


def test_packed_sequences_are_checked_and_have_rows(script: ModuleType, tmp_path: Path) -> None:
    words = ["--dry", "--out", str(tmp_path), "--candidate", "flashsmith"]
    words += ["--cases", "d 64 causal*14/2*packed"]
    assert run_program(script.BENCHMARK, "Some.", words) == 0
    with (tmp_path / "models.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["operation"] for row in rows} == {"forward", "backward"}
    drawn = [case.tiny() for case in packed_cases(script) if case.name == "Qwen 2.5 0.5B"]
    assert [(row["batch"], row["queries"], row["seq_len_k"]) for row in rows] == [
        ("3", *[str(max(case.lengths))] * 2) for case in drawn
    ]
    assert {(row["group"], row["cache"]) for row in rows} == {("packed training", "")}
    assert all(0 < float(row["error"]) < TOLERANCE for row in rows)


def test_decode_is_timed_in_a_graph_and_others_back_to_back(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A program says how long each case took, because time on a GPU is planned by that."""
    asked: list[tuple[Case, list[str]]] = []

    def measure(_: Runner, case: Case, regimes: list[str]) -> list[CaseResult]:
        asked.append((case, regimes))
        return []

    monkeypatch.setattr(Runner, "measure", measure)
    words = ["--dry", "--out", str(tmp_path), "--candidate", "flashsmith"]
    assert run_program(script.BENCHMARK, "Some.", words) == 0
    assert {(case.operation, *regimes) for case, regimes in asked} == {
        ("forward", IN_TURN, BACK_TO_BACK),
        ("backward", IN_TURN, BACK_TO_BACK),
        ("decode", IN_TURN, IN_GRAPH),
    }
    said = capsys.readouterr().err.splitlines()
    assert said == [f"0.0 s: {case}" for case, _ in asked]


def test_no_table_was_tuned_on_a_case(script: ModuleType) -> None:
    tables = [Table.read(path) for path in shipped_table_paths()]
    tuned = {(table.operation.name, e.workload) for table in tables for e in table.entries.values()}
    assert tuned and not tuned & {(case.operation, case.workload) for case in script.cases()}
