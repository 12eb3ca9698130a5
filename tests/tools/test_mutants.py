"""tools.mutants: the sandbox, the table, the compiler; on a toy project with quick tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tools.mutants import areas, compiler, schedule
from tools.mutants.areas import Area, Stage
from tools.mutants.kernels import link_entries
from tools.mutants.mutant import Mutant
from tools.mutants.results import Result, Table, read, summary
from tools.mutants.sample import of_places, quotas
from tools.mutants.sandbox import Workshop
from tools.mutants.schedule import Schedule

TOY = Area("toy", ("src/toy/*.py",), (Stage(("test_toy.py", "test_absent.py")),))
SOURCE = "def clamp(x: int | None) -> int:\n    return 0 if x < 0 else x\n\n\nUNUSED = 5\n"
TESTS = """\
import toy.clamp
def test_below(): assert toy.clamp.clamp(-3) == 0
def test_above(): assert toy.clamp.clamp(2) == 2
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    root, store = tmp_path / "project", tmp_path / "store"
    for name, text in {"src/toy/clamp.py": SOURCE, "tests/test_toy.py": TESTS,
                       "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['gpu: none']\n",
                       "build/old": "", ".git/config": ""}.items():  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    store.mkdir()
    monkeypatch.setitem(areas.BY_NAME, "toy", TOY)
    return Workshop(root, store)


def _mutant(before: str, after: str) -> Mutant:
    """Returns a mutant of the second line of the toy's source."""
    return Mutant("toy", "src/toy/clamp.py", 2, "by hand", before, f"{before} {after}",
                  lambda text: text.replace(before, after))  # fmt: skip


KILLED = _mutant("if x < 0", "if not x < 0")
SURVIVES = _mutant("UNUSED = 5", "UNUSED = 6")
BROKEN = _mutant("UNUSED = 5", "UNUSED = (")
ENDLESS = _mutant(
    "UNUSED = 5",
    "import subprocess\n"
    "subprocess.Popen(['sleep', '98765'], start_new_session=True)\n"
    "while True: pass",
)


def test_quotas_sum_up_and_are_even() -> None:
    assert quotas(8, 3) == [3, 3, 2]
    assert quotas(300, 15) == [20] * 15
    assert quotas(1, 2) == [1, 0]


# ---- the verdict on a mutant ----


def test_a_mutant_that_a_test_notices_is_killed(toy: Workshop, tmp_path: Path) -> None:
    table = Table(tmp_path / "results.csv")
    Schedule(toy, table).run([[KILLED]], jobs=1, minutes=None)
    (result,) = read(tmp_path / "results.csv")
    assert (result.status, result.killer) == ("killed", "tests/test_toy.py::test_below")
    assert result.after == "return 0 if not x < 0 else x" and result.line == 2
    assert (toy.root / "src/toy/clamp.py").read_text() == SOURCE, "the project itself is as it was"


def test_a_mutant_that_no_test_notices_survives(toy: Workshop, tmp_path: Path) -> None:
    result = Schedule(toy, Table(tmp_path / "results.csv")).judge(SURVIVES)
    assert result is not None and result.status == "survived"


def test_a_mutant_without_end_is_ended(
    toy: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "_SLACK_SECONDS", 3.0)
    monkeypatch.setattr(schedule, "_FACTOR", 0.0)
    result = Schedule(toy, Table(tmp_path / "results.csv")).judge(ENDLESS)
    assert result is not None and result.status == "timeout" and result.seconds < 60
    left = subprocess.run(["pgrep", "-f", "sleep 98765"], capture_output=True, check=False)
    assert left.stdout == b"", "its processes have ended, too"


def test_what_does_not_compile_is_replaced_by_the_next(toy: Workshop, tmp_path: Path) -> None:
    Schedule(toy, Table(tmp_path / "results.csv")).run([[BROKEN, KILLED]], jobs=1, minutes=None)
    assert [r.status for r in read(tmp_path / "results.csv")] == ["not-compiled", "killed"]


def test_a_second_run_goes_on_where_the_first_stopped(
    toy: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.csv"
    queues = [[KILLED], [SURVIVES]]
    Schedule(toy, Table(path)).run(queues[:1], jobs=1, minutes=None)
    judged = []
    monkeypatch.setattr(Schedule, "judge", lambda _, mutant: judged.append(mutant.id))
    Schedule(toy, Table(path)).run(queues, jobs=1, minutes=None)
    assert judged == [SURVIVES.id]


def test_no_mutant_starts_when_the_time_is_over(toy: Workshop, tmp_path: Path) -> None:
    toy.stop.set()
    Schedule(toy, Table(tmp_path / "results.csv")).run([[SURVIVES]], jobs=1, minutes=0)
    assert not (tmp_path / "results.csv").exists()


def test_tests_that_fail_without_a_mutant_kill_none(toy: Workshop, tmp_path: Path) -> None:
    (toy.root / "tests/test_toy.py").write_text(TESTS + "def test_broken(): assert False\n")
    result = Schedule(toy, Table(tmp_path / "results.csv")).judge(SURVIVES)
    assert result is not None and result.status == "survived"


def test_a_test_whose_compiler_fails_takes_no_other_with_it(toy: Workshop, tmp_path: Path) -> None:
    broken = "def test_broken(): raise RuntimeError('BuildError: no such compiler')\n"
    (toy.root / "tests/test_toy.py").write_text(TESTS + broken)
    result = Schedule(toy, Table(tmp_path / "results.csv")).judge(KILLED)
    assert result is not None
    assert (result.status, result.killer) == ("killed", "tests/test_toy.py::test_below")


def test_no_mutant_survives_where_no_tests_can_run(toy: Workshop, tmp_path: Path) -> None:
    (toy.root / "tests/test_toy.py").write_text("import absent\n" + TESTS)
    assert Schedule(toy, Table(tmp_path / "results.csv")).judge(SURVIVES) is None  # left open


# ---- what is printed ----


def _result(name: str, status: str) -> Result:
    return Result(name, "toy", "a/b.py", 1, "number", "1", "2", status, 0.5, "test_x")


def test_where_pytest_does_not_start_nothing_is_killed(toy: Workshop, tmp_path: Path) -> None:
    """If pytest is not installed, for example, each mutant would seem to be noticed."""
    (toy.root / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--no-such'\n")
    table = Table(tmp_path / "results.csv")
    with pytest.raises(RuntimeError, match="pytest fails without a mutant"):
        Schedule(toy, table).run([[KILLED]], jobs=1, minutes=None)
    assert not table.results


def test_summary_keeps_equivalent_mutants_apart() -> None:
    results = [_result("a", "killed"), _result("b", "survived"), _result("c", "survived"),
               _result("d", "timeout"), _result("e", "not-compiled")]  # fmt: skip
    text = summary(results, {"c": "no effect"})
    assert "survived: b" in text and "equivalent: c" in text and "    no effect" in text
    assert "noticed: 66.7% of 3 mutants" in text
    assert "not equivalent, test_x notices it: a" in summary(results, {"a": "no effect"})


def test_a_place_is_judged_by_its_first_mutant_that_compiles() -> None:
    """The results of substitutes that an earlier sample needed do not count."""
    places = [[KILLED, SURVIVES], [BROKEN, ENDLESS], [ENDLESS]]
    results = {
        KILLED.id: _result("a", "killed"),
        SURVIVES.id: _result("b", "survived"),
        BROKEN.id: _result("c", "not-compiled"),
    }
    found, missing = of_places(places, results)
    assert [each.id for each in found] == ["a", "c"]
    assert missing == 2


# ---- the compiler that keeps objects ----


def test_compiler_compiles_again_only_what_a_header_reaches(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text(f'#!/bin/sh\necho x >> "{tmp_path}/calls"\nexec c++ "$@"\n')
    real.chmod(0o755)
    (tmp_path / "store").mkdir()

    def build(copy: str, value: int, record: bool) -> int:
        """Returns the number of calls of the real compiler."""
        root = tmp_path / copy
        root.mkdir(exist_ok=True)
        (root / "value.h").write_text(f"#define VALUE {value}\n")
        (root / "uses.cpp").write_text('#include "value.h"\nint f() { return VALUE; }\n')
        (root / "plain.cpp").write_text("int g() { return 1; }\n")
        (tmp_path / "calls").write_text("")
        compiler.write_script(root / "c++", str(real), tmp_path / "store", root)
        for name in ("uses", "plain"):
            command = [root / "c++", f"-I{root}", "-c", root / f"{name}.cpp", "-o", root / name]
            environment = os.environ | {"MUTANTS_RECORD": "1" if record else ""}
            subprocess.run(command, check=True, env=environment)
            assert (root / name).stat().st_size > 0
        return len((tmp_path / "calls").read_text().split())

    assert build("first", 1, record=True) == 2
    assert build("second", 1, record=False) == 0
    assert build("third", 2, record=False) == 1


def test_compiler_hands_on_what_nvcc_asks(tmp_path: Path) -> None:
    """The command is ``-c -x c++ source``, in which no file follows ``-c``."""
    (tmp_path / "plain.cc").write_text("int g() { return 1; }\n")
    compiler.write_script(
        tmp_path / "c++", shutil.which("c++") or "g++", tmp_path / "store", tmp_path
    )
    command = ["./c++", "-c", "-x", "c++", "plain.cc", "-o", "plain"]
    subprocess.run(command, check=True, cwd=tmp_path, env=os.environ | {"MUTANTS_RECORD": "1"})
    assert (tmp_path / "plain").stat().st_size > 0


# ---- the kernels that were built without a mutant ----


def test_entries_of_a_cache_are_linked_whole_and_once(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("objects/done", "libraries/done", "staging/begun", "objects/unfinished"):
        (source / name).mkdir(parents=True)
        (source / name / "code.o").write_text(name)
        if "unfinished" not in name:
            (source / name / "manifest.json").write_text("{}")
    for _ in range(2):
        link_entries(source, target)
    found = sorted(p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file())
    assert found == [f"{kind}/done/{name}" for kind in ("libraries", "objects")
                     for name in ("code.o", "manifest.json")]  # fmt: skip
    assert (target / "objects/done/code.o").samefile(source / "objects/done/code.o")


def test_kernels_built_without_a_mutant_are_there_for_those_that_follow(toy: Workshop) -> None:
    """Stages whose tests are about building do not get these kernels."""
    builds = """\
import os, pathlib
ENTRY = pathlib.Path(os.environ["FLASHSMITH_CACHE_DIR"]) / "objects" / "kernel"
def test_it():
    known = ENTRY.exists()
    ENTRY.mkdir(parents=True, exist_ok=True)
    (ENTRY / "manifest.json").write_text("{}")
    assert known
"""
    (toy.root / "tests/test_toy.py").write_text(builds)
    for stage in (Stage(("test_toy.py",), uses_built=False), Stage(("test_toy.py",))):
        statuses = []
        for record in (True, False):
            with toy.sandbox() as sandbox:
                statuses.append(sandbox.run(stage, 60, record=record).status)
        assert statuses == ["failed", "passed" if stage.uses_built else "failed"]
