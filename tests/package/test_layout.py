"""The layout of the tests: by concept, in short files that import no other test file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from support.paths import TESTS

MAX_LINES = 400
FILES = sorted(TESTS.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_every_test_is_in_a_folder() -> None:
    assert len(FILES) > 80
    assert not list(TESTS.glob("test_*.py"))


def test_no_file_is_too_long() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in FILES}
    assert not {path: length for path, length in lengths.items() if length > MAX_LINES}


def test_no_file_imports_tests_or_fixtures() -> None:
    for path in FILES:
        named = {part for name in imports(path) for part in name.split(".")}
        assert not {n for n in named if n.startswith("test_") or n == "conftest"}, path


def test_what_is_shared_lies_in_support() -> None:
    """Only tests/support holds shared code; other folders hold tests and fixtures."""
    for path in FILES:
        is_test = path.name.startswith("test_") or path.name == "conftest.py"
        assert is_test != (path.parent == TESTS / "support"), path
