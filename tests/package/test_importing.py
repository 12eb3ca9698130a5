"""A function that waits for the import of another module, and imports without collections."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from flashsmith.configs import KernelId
from flashsmith.configs.registry import FORWARD
from flashsmith.errors import TuningError
from flashsmith.importing import after_import, no_collections
from flashsmith.jit import KernelCache, Target, find_host, find_modules
from flashsmith.selection import choose
from support.sm80_kernels import BASE


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


def test_the_collector_is_off_meanwhile_and_then_as_before() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError, match="from within"), no_collections():
        assert not gc.isenabled()
        raise ValueError("from within")
    assert gc.isenabled()
    gc.disable()
    try:
        with no_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_look_ups_are_without_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The objects that they keep would have the collector walk over all of torch's."""
    seen: list[bool] = []

    def entries(cache: KernelCache, folder: Path) -> list[Path]:
        seen.append(gc.isenabled())
        return []

    def read_for(*_: object) -> None:
        seen.append(gc.isenabled())
        raise TuningError("none")

    monkeypatch.setattr(KernelCache, "entries", entries)
    monkeypatch.setattr(choose, "read_for", read_for)
    cache = KernelCache()
    assert find_host(caches=[cache]) is None
    assert find_modules([KernelId(BASE)], Target.emulator(), caches=[cache]) == {}
    with pytest.warns(UserWarning, match="none"):
        choose.find_tables.__wrapped__(FORWARD, "NVIDIA H200")
    assert len(seen) > 2 and not any(seen)
    assert gc.isenabled()


def test_attention_is_imported_without_collections() -> None:
    code = """\
import gc, torch, flashsmith
seen = []
gc.callbacks.append(lambda phase, info: seen.append(info))
flashsmith.attention
assert len(seen) < 4, seen
assert gc.isenabled()
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
