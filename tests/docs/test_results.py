"""benchmarks/results has what a page quotes or something reads, and pages quote what it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.paths import ROOT

RESULTS = ROOT / "benchmarks" / "results"
README = RESULTS / "README.md"
PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")))
FILES = sorted(path for path in RESULTS.rglob("*") if path.is_file() and path != README)
# What stands beside a file of results: where it was measured, and whether kernels are the same.
BESIDE = re.compile(r"(\w+_)?environment\.json|machine_code(_now)?\.(csv|json)")
# What no page quotes, and the file that reads it.
READ = {
    "machine_code_record.csv": "tools/build/machine_code.py",
    "compilers/2026-11-24.csv": "tests/tools/test_compilers.py",
    "h200/2026-11-21/forward-bf16/forward.csv": "src/flashsmith/lab/report/results.py",
}
_NAMED = re.compile(r"benchmarks/results/([\w./-]*[\w/-])")


def named_by(page: Path) -> list[str]:
    """The files and folders of results that a page names, but for examples of a folder to write."""
    names = _NAMED.findall(page.read_text())
    return [name.rstrip("/") for name in names if "2026-01-01" not in name]


def quoted() -> set[Path]:
    """Every file that a page names, and those that lie in a folder that one names."""
    named = {RESULTS / name for page in PAGES for name in named_by(page)}
    return {path for path in FILES if {path, path.parent} & named}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_results_that_are_there(page: Path) -> None:
    assert [name for name in named_by(page) if not (RESULTS / name).exists()] == []


def test_each_file_is_quoted_or_read() -> None:
    needed = quoted() | {RESULTS / name for name in READ}
    folders = {path.parent for path in needed}
    extra = {
        str(path.relative_to(RESULTS))
        for path in FILES
        if path not in needed and not (BESIDE.fullmatch(path.name) and path.parent in folders)
    }
    assert len(needed) > 60
    assert extra == set()


@pytest.mark.parametrize("name", READ)
def test_what_no_page_quotes_is_there_and_read(name: str) -> None:
    assert RESULTS / name in FILES
    assert RESULTS / name not in quoted()
    assert (ROOT / READ[name]).is_file()


def test_the_readme_says_what_each_file_is() -> None:
    """A row names files and folders, the others relative to where the first lies."""
    told: set[Path] = set()
    for row in re.findall(r"^\| (`.*?`) \|", README.read_text(), re.MULTILINE):
        first, *others = re.findall(r"`([^`]+)`", row)
        told |= {RESULTS / first, *((RESULTS / first).parent / each for each in others)}
    assert {str(path) for path in told if not path.exists()} == set()
    runs = {path for path in told if re.fullmatch(r"\d{4}-\d\d-\d\d", path.parent.name)}
    not_told = {
        path
        for path in FILES
        if not ({path, path.parent} & told or {*path.parents} & runs or BESIDE.fullmatch(path.name))
    }
    assert {str(path.relative_to(RESULTS)) for path in not_told} == set()
