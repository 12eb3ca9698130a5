"""benchmarks/models.py: its cases are the same everywhere, odd, and new to the tuned tables."""

from __future__ import annotations

from types import ModuleType

import pytest

from flashsmith.lab.bench.cases import Case
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


def test_no_table_was_tuned_on_a_case(script: ModuleType) -> None:
    tables = [Table.read(path) for path in shipped_table_paths()]
    tuned = {(table.operation.name, e.workload) for table in tables for e in table.entries.values()}
    assert tuned and not tuned & {(case.operation, case.workload) for case in script.cases()}
