"""tools.mutants: which mutants are chosen. Needs the extra `mutants`."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from support.paths import ROOT

pytest.importorskip("cosmic_ray", reason="cosmic-ray comes with the extra `mutants`")

from tools.mutants import python_operators
from tools.mutants.areas import AREAS
from tools.mutants.results import equivalents, read
from tools.mutants.sample import mutants_of, sample


def test_sample_is_the_same_every_time_and_follows_seed_and_count() -> None:
    small = [a for a in AREAS if a.name in ("sm80", "tuning")]
    ids = [[m.id for m in queue] for queue in sample(ROOT, 12, 1, small)]
    assert ids == [[m.id for m in queue] for queue in sample(ROOT, 12, 1, small)]
    assert len(ids) == 12 and ids != [[m.id for m in q] for q in sample(ROOT, 12, 2, small)]
    every = [i for queue in ids for i in queue]
    assert len(every) == len(set(every)), "a mutant stands in one queue"


def test_ids_are_unique_and_each_area_has_mutants_and_tests() -> None:
    ids: list[str] = []
    for area in AREAS:
        mutants = mutants_of(area, ROOT)
        assert len(mutants) > 20 and any(s.arguments(ROOT) for s in area.stages), area.name
        ids += [m.id for m in mutants]
    assert len(ids) == len(set(ids))


def test_each_source_is_in_one_area() -> None:
    source = ROOT / "src/flashsmith"
    suffixes = {".py", ".cuh", ".h", ".cpp"}
    files = sorted(path for path in source.rglob("*") if path.suffix in suffixes)
    left_out = {path for path in files for area in AREAS if path.name in area.left_out}
    found = sorted(path for area in AREAS for path in area.files(ROOT))
    assert found == [path for path in files if path not in left_out]


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("x = a < 3\n", "relation", ["x = a <= 3\n"]),
        ("x = a + b\n", "arithmetic", ["x = a - b\n"]),
        ("x: int | None = a | b\n", "arithmetic", []),
        ("def f(x: int = 3) -> 4: pass\n", "number", ["3", "3"]),
        ("@dataclass(frozen=True)\nclass A: x = True\n", "boolean", ["x = False"]),
        ("if a: pass\n", "condition", ["if not a: pass\n"]),
        ("x = a and b\n", "and, or", ["x = a or b\n"]),
    ],
)
def test_python_operators(text: str, kind: str, expected: list[str]) -> None:
    found = [python_operators.mutate(text, p) for p in python_operators.places(text)
             if p.kind == kind]  # fmt: skip
    assert len(found) == len(expected) and text not in found
    assert kind == "number" or all(e in f for e, f in zip(expected, found, strict=True))


def test_each_equivalent_mutant_exists_and_has_a_reason() -> None:
    """In the sources of now, or in the sample whose results are kept."""
    ids = {m.id for area in AREAS for m in mutants_of(area, ROOT)}
    ids |= {result.id for result in read(ROOT / "tools/mutants/results.csv")}
    for name, reason in equivalents().items():
        assert name in ids and len(reason) > 20, name


def test_figure_in_the_docs_is_that_of_the_results() -> None:
    results = read(ROOT / "tools/mutants/results.csv")
    assert len({result.id for result in results}) == len(results)
    reasons = equivalents()
    count = Counter(
        "equivalent" if r.status == "survived" and r.id in reasons else r.status for r in results
    )
    judged = len(results) - count["not-compiled"]
    figure = (
        f"Of 200 mutants {judged} were judged: {count['killed'] + count['timeout']} were killed, "
        f"{count['survived']} survived, {count['equivalent']} are equivalent; {200 - judged} have "
        "not run."
    )
    assert figure in " ".join((ROOT / "docs/mutants.md").read_text().split())


def test_command_line_lists_a_shard() -> None:
    command = [sys.executable, "-m", "tools.mutants", "--list", "--areas", "tuning", "--count", "4"]
    both = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    half = subprocess.run([*command, "--shard", "2/2"], cwd=ROOT, capture_output=True, text=True,
                          check=True).stdout  # fmt: skip
    lines = both.splitlines()
    assert half.splitlines() == [*lines[3:6], *lines[9:12]]
