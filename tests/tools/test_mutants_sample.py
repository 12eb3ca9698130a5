"""tools.mutants: the mutants that are chosen. Needs the extra `mutants`."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from support.paths import ROOT

pytest.importorskip("cosmic_ray", reason="cosmic-ray comes with the extra `mutants`")

from tools.mutants import python_operators
from tools.mutants.areas import AREAS
from tools.mutants.results import equivalents, read
from tools.mutants.sample import mutants_of, sample


def test_sample_is_the_same_every_time_and_follows_seed_and_count() -> None:
    small = [a for a in AREAS if a.name in ("append", "tuning")]
    ids = [[m.id for m in queue] for queue in sample(ROOT, 12, 1, small)]
    assert ids == [[m.id for m in queue] for queue in sample(ROOT, 12, 1, small)]
    assert len(ids) == 12 and ids != [[m.id for m in q] for q in sample(ROOT, 12, 2, small)]
    every = [i for queue in ids for i in queue]
    assert len(every) == len(set(every)), "a mutant stands in one queue"


def test_an_edit_takes_out_of_a_sample_what_it_changes_and_little_else(tmp_path: Path) -> None:
    area = replace(next(a for a in AREAS if a.name == "append"), patterns=("*.cuh",), but=())
    (source,) = next(a for a in AREAS if a.name == "append").files(ROOT)
    text = source.read_text()
    firsts = []
    for name, code in (("before", text), ("after", f"int first_line = 1 + 2;\n{text}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / source.name).write_text(code)
        firsts.append([queue[0].id for queue in sample(tmp_path / name, 30, 1, [area])])
    before, after = firsts
    assert before != after or len(mutants_of(area, tmp_path / "after")) > 30
    assert len(set(before) - set(after)) <= 3


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


def test_a_sample_has_as_many_of_each_area() -> None:
    drawn = Counter(queue[0].area for queue in sample(ROOT, 300, 7))
    assert set(drawn.values()) == {20}
    assert set(drawn) >= {"host", "ops", "mods", "integrations", "selection", "runtime"}


@pytest.mark.parametrize("operation", ["forward", "backward", "decode", "append", "e4m3"])
def test_device_code_of_each_operation_is_in_the_sample(operation: str) -> None:
    """A file that is named after an operation belongs to one area in each family."""
    kernels = ROOT / "src/flashsmith/csrc/include/flashsmith"
    of_fp8 = {path for path in kernels.rglob("*.cuh") if "e4m3" in path.name}
    named = {path for path in kernels.rglob("*.cuh") if operation in path.name}
    files = of_fp8 if operation == "e4m3" else named - of_fp8
    homes = {
        area.name: found
        for area in AREAS
        if area.is_sampled and (found := files & set(area.files(ROOT)))
    }
    assert files and set().union(*homes.values()) == files
    expected = {"append": "append", "e4m3": "fp8"}.get(operation, f"{operation}_sm")
    assert all(name.startswith(expected) for name in homes), homes
    families = {path.parent.name for path in files} & {"sm80", "sm90"}
    assert len(homes) == max(len(families) if expected.endswith("_sm") else 1, 1)


def test_areas_by_name_have_all_of_a_sample() -> None:
    """This includes areas that no sample has unless they are named."""
    others = [area for area in AREAS if not area.is_sampled][:2]
    assert len(sample(ROOT, 6, 1, others)) == 6


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
    ids = {m.id for area in AREAS for m in mutants_of(area, ROOT)}
    for name, reason in equivalents().items():
        assert name in ids and len(reason) > 20, name


def test_results_are_of_files_and_areas_that_exist() -> None:
    results = read(ROOT / "tools/mutants/results.csv")
    assert len({result.id for result in results}) == len(results)
    homes = {path: area.name for area in AREAS for path in area.files(ROOT)}
    assert not [r for r in results if homes.get(ROOT / r.file) != r.area]


def test_figures_in_the_docs_are_those_of_the_results() -> None:
    reasons = equivalents()
    rows = {}
    for result in read(ROOT / "tools/mutants/results.csv"):
        if result.status != "not-compiled":
            is_equivalent = result.status == "survived" and result.id in reasons
            rows.setdefault(result.area, Counter())[
                "equivalent" if is_equivalent else result.status
            ] += 1
    lines = [
        f"| {area} | {n['killed'] + n['timeout']} | {n['survived']} | {n['equivalent']} |"
        for area, n in sorted(rows.items())
    ]
    assert "\n".join(lines) in (ROOT / "docs/mutants.md").read_text()


def test_command_line_lists_a_shard() -> None:
    command = [sys.executable, "-m", "tools.mutants", "--list", "--areas", "tuning", "--count", "4"]
    both = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    half = subprocess.run([*command, "--shard", "2/2"], cwd=ROOT, capture_output=True, text=True,
                          check=True).stdout  # fmt: skip
    lines = both.splitlines()
    assert half.splitlines() == [*lines[3:6], *lines[9:12]]
