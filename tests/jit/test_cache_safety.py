"""The kernel cache: damage, and write permission."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from flashsmith.errors import CacheError
from flashsmith.jit import (
    KernelCache,
    list_modules,
)
from support.permissions import obeying_permissions
from support.workshop import KERNEL_FILES, Workshop, flip_last_byte, replace

ANEW = sorted([KERNEL_FILES[0], "link"])


def built(workshop: Workshop) -> list[Path]:
    """Builds one kernel, and returns the entries that are loaded."""
    (module,) = workshop.build()
    return [module.directory, workshop.host.directory]


# ---- damage ----


def truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def make_writable_by_others(path: Path) -> None:
    path.chmod(0o666)


DAMAGES: list[Callable[[Path], None]] = [
    truncate,
    flip_last_byte,
    Path.unlink,
    make_writable_by_others,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_module_is_compiled_again(
    workshop: Workshop, damage: Callable[[Path], None]
) -> None:
    damage(workshop.build()[0].path)
    assert workshop.find() == []
    assert workshop.new_compilations() == [KERNEL_FILES[0]]
    assert workshop.new_compilations() == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_host_library_is_linked_again(
    workshop: Workshop, damage: Callable[[Path], None]
) -> None:
    workshop.build()
    damage(workshop.host.path)
    assert workshop.find_host() is None
    assert workshop.new_compilations() == ["link"]
    assert workshop.new_compilations() == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_object_is_compiled_again(
    workshop: Workshop, damage: Callable[[Path], None]
) -> None:
    workshop.build()
    shutil.rmtree(workshop.host.directory)
    (damaged,) = (workshop.cache / "objects").glob("host-tiny-*/*.o")
    damage(damaged)
    assert workshop.new_compilations() == ["link", "tiny.cpp"]


@pytest.mark.parametrize(
    "garbage", ["", "{", "[]", "null", '{"artifact": 1}', '{"artifact": {"file": "x"}}', "\0\xff"]
)
def test_garbage_manifest_is_rebuilt(workshop: Workshop, garbage: str) -> None:
    directories = built(workshop)
    for directory in directories:
        (directory / "manifest.json").write_text(garbage)
    assert list_modules() == [] and workshop.find_host() is None
    assert workshop.new_compilations() == ANEW


def test_manifest_that_was_edited_is_rebuilt(workshop: Workshop) -> None:
    for directory in built(workshop):
        replace(directory / "manifest.json", '"source_hash"', '"sauce_hash"')
    assert list_modules() == [] and workshop.find_host() is None
    assert workshop.new_compilations() == ANEW


def test_file_in_place_of_an_entry_is_replaced(workshop: Workshop) -> None:
    for directory in built(workshop):
        shutil.rmtree(directory)
        directory.write_text("not a folder")
    assert workshop.new_compilations() == ANEW


# ---- write permission ----


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_cache_that_others_can_write_is_refused(workshop: Workshop, mode: int) -> None:
    workshop.build()
    workshop.cache.chmod(mode)
    for use in (workshop.build, workshop.find, workshop.find_host, list_modules):
        with pytest.raises(CacheError, match=f"chmod 700 {re.escape(str(workshop.cache))}"):
            use()


@pytest.mark.parametrize("name", ["kernels", "hosts", "objects", "staging"])
def test_a_folder_of_it_that_others_can_write_is_refused(workshop: Workshop, name: str) -> None:
    """The mode of the cache itself may have been opened and closed again."""
    workshop.build()
    folder = workshop.cache / name
    folder.chmod(0o777)
    for use in (workshop.build, workshop.find, workshop.find_host, list_modules):
        with pytest.raises(CacheError, match=f"chmod 700 {re.escape(str(folder))}"):
            use()


def test_cache_of_somebody_else_is_refused(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.build()
    if os.geteuid() == 0:
        os.chown(workshop.cache, 4242, 4242)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(CacheError, match="belongs to user"):
        workshop.build()


def test_cache_is_private_whatever_the_umask(workshop: Workshop) -> None:
    before = os.umask(0)
    try:
        entries = built(workshop)
    finally:
        os.umask(before)
    for folder in (workshop.cache, *(entry.parent for entry in entries), *entries):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert workshop.new_compilations() == []  # the cache trusts its own files


def test_file_in_place_of_the_cache(workshop: Workshop) -> None:
    workshop.cache.write_text("")
    with pytest.raises(CacheError, match="not a directory"):
        workshop.build()


@pytest.mark.parametrize("written", ["relative/cache", "~/cache"])
def test_cache_directory_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "relative"))
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", written)
    assert KernelCache().root == tmp_path / "relative" / "cache"


def test_read_only_cache_serves_what_it_has(workshop: Workshop) -> None:
    (module,) = workshop.build()
    entries = [workshop.cache, *workshop.cache.rglob("*")]
    for path in entries:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        with obeying_permissions():
            assert [each.path for each in workshop.build()] == [module.path]
            assert workshop.find_host() is not None
            with pytest.raises(CacheError, match=r"cannot be written.*FLASHSMITH_CACHE_DIR"):
                workshop.build(2)
    finally:
        for path in entries:
            path.chmod(path.stat().st_mode | 0o200)
