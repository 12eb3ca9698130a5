"""A function that waits for the import of another module."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from flashsmith.after_import import after_import


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the name of a module that can be imported, and is not."""
    (tmp_path / "watched.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, "watched", raising=False)
    return "watched"


def test_the_call_follows_the_import_once(name: str) -> None:
    seen: list[int] = []
    after_import(name, lambda: seen.append(sys.modules[name].value))
    after_import(name, lambda: seen.append(8))
    importlib.import_module("json")
    assert seen == []
    finders = len(sys.meta_path)
    assert importlib.import_module(name).value == 7
    assert sorted(seen) == [7, 8]
    assert len(sys.meta_path) == finders - 2
    importlib.reload(sys.modules[name])
    assert len(seen) == 2


def test_the_call_is_now_if_the_module_is_there(name: str) -> None:
    importlib.import_module(name)
    seen: list[int] = []
    after_import(name, lambda: seen.append(1))
    assert seen == [1]


def test_a_module_that_does_not_exist_is_missing_as_before(name: str) -> None:
    after_import("watched_for_nothing", lambda: pytest.fail("it was called"))
    with pytest.raises(ModuleNotFoundError, match="No module named 'watched_for_nothing'"):
        importlib.import_module("watched_for_nothing")
