"""Caches that are only read: one that others share, and the kernels that came with the package."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import support.tiny_build as tiny
from flashsmith.cli import app
from flashsmith.errors import CacheError
from flashsmith.jit import (
    KernelCache,
    build_host,
    build_kernels,
    built_instances,
    caches,
    list_modules,
)
from support.permissions import obeying_permissions
from support.tiny_build import EMULATOR, INSTANCES
from support.workshop import HOST, KERNEL_FILES, Workshop, flip_last_byte, replace

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def shared(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a shared cache with the first kernel and the host library; the own one is empty."""
    root = fill(workshop, workshop.root / "shared")
    monkeypatch.setenv("FLASHSMITH_SHARED_CACHE", str(root))
    return root


def fill(workshop: Workshop, root: Path, count: int = 1) -> Path:
    out = KernelCache(root)
    build_kernels(INSTANCES[:count], EMULATOR, sources=workshop.sources, cache=out)
    out.keep_only_products()
    return root


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# ---- a folder that a build fills ----


def test_a_folder_gets_all_kernels_and_the_host_whatever_other_caches_have(
    workshop: Workshop, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.build(2)
    before = files_in(workshop.cache)
    root = fill(workshop, workshop.root / "out", count=2)
    assert files_in(workshop.cache) == before
    assert {path.name for path in root.iterdir()} == {"kernels", "hosts"}
    shutil.rmtree(workshop.cache)
    monkeypatch.delenv("FLASHSMITH_SHARED_CACHE")
    root.rename(workshop.cache)
    assert workshop.new_compilations(2) == []


def test_a_folder_of_other_files_is_refused(workshop: Workshop) -> None:
    """A build removes such folders in the end, and `objects` may be somebody's own."""
    root = workshop.root / "project"
    (root / "objects").mkdir(parents=True)
    (root / "README").write_text("mine")
    with pytest.raises(CacheError, match=rf"{root} has other files: README.*new or empty"):
        KernelCache(root).require_for_products()
    (root / "README").unlink()
    KernelCache(root).require_for_products()
    KernelCache(workshop.root / "new").require_for_products()
    workshop.build()
    with pytest.raises(CacheError, match=rf"{workshop.cache} is your kernel cache"):
        KernelCache(workshop.cache).require_for_products()


def test_the_command_refuses_such_a_folder_before_anything_is_built(workshop: Workshop) -> None:
    mine = workshop.root / "objects" / "mine.o"
    mine.parent.mkdir()
    mine.write_text("")
    command = ["build", "-k", INSTANCES[0].name, "--target", "emulator"]
    result = CliRunner().invoke(app, [*command, "--out", str(workshop.root)])
    assert result.exit_code == 1 and "has other files" in result.stderr
    assert mine.exists() and not workshop.log.exists()


# ---- a shared cache ----


def test_what_it_has_is_not_built(workshop: Workshop, shared: Path) -> None:
    (module,) = workshop.find()
    assert module.path.is_relative_to(shared) and workshop.host.path.is_relative_to(shared)
    assert built_instances(EMULATOR, sources=workshop.sources) == {INSTANCES[0]}
    assert [each.path for each in list_modules()] == [module.path]
    assert workshop.new_compilations() == []
    assert not workshop.cache.exists()


def test_what_it_lacks_is_built_into_the_own_cache(workshop: Workshop, shared: Path) -> None:
    before = files_in(shared)
    assert workshop.new_compilations(2) == [KERNEL_FILES[1]]
    places = {module.name: module.path.is_relative_to(shared) for module in workshop.build(2)}
    assert places == {INSTANCES[0].name: True, INSTANCES[1].name: False}
    assert files_in(shared) == before
    assert not list((workshop.cache / "hosts").iterdir())


def test_force_builds_into_the_own_cache_which_is_then_used(
    workshop: Workshop, shared: Path
) -> None:
    assert workshop.new_compilations(force=True) == [KERNEL_FILES[0]]
    assert workshop.find()[0].path.is_relative_to(workshop.cache)


def test_its_kernels_need_no_compiler(
    workshop: Workshop, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHSMITH_CXX", "/nowhere/c++")
    assert workshop.build()[0].path.is_relative_to(shared)
    assert build_host(sources=workshop.sources).path.is_relative_to(shared)


def test_kernels_of_other_sources_and_damaged_ones_are_built(
    workshop: Workshop, shared: Path
) -> None:
    flip_last_byte(workshop.find()[0].path)
    assert workshop.new_compilations() == [KERNEL_FILES[0]]
    replace(workshop.csrc / "include/flashsmith/tiny.cuh", "7", "8")
    assert tiny.sum_of_kernels(workshop.build(), workshop.sources) == 8
    flip_last_byte(workshop.host.path)
    assert workshop.find_host() is None
    build_host(sources=workshop.sources)
    assert workshop.host.path.is_relative_to(workshop.cache)


def test_what_cannot_be_loaded_here_is_left_and_built_in_the_own_cache(
    workshop: Workshop, shared: Path
) -> None:
    (module,), library = workshop.find(), workshop.host
    KernelCache().create()
    for entry in (module, library):
        entry.set_aside()
        assert entry.path.exists()
        entry.refuse()
    assert workshop.find() == [] and workshop.find_host() is None
    assert workshop.new_compilations() == sorted([*HOST, KERNEL_FILES[0]])


def test_it_may_be_read_only(workshop: Workshop, shared: Path) -> None:
    paths = [shared, *shared.rglob("*")]
    for path in paths:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        with obeying_permissions():
            assert workshop.new_compilations(2) == [KERNEL_FILES[1]]
    finally:
        for path in paths:
            path.chmod(path.stat().st_mode | 0o200)


def test_one_that_is_not_there_is_named(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHSMITH_SHARED_CACHE", "/nowhere/kernels")
    for use in (workshop.build, workshop.find, workshop.find_host, list_modules):
        with pytest.raises(CacheError, match=r"FLASHSMITH_SHARED_CACHE is /nowhere/kernels, which"):
            use()


@pytest.mark.parametrize("name", [".", "kernels", "hosts"])
def test_one_that_others_can_write_is_refused(workshop: Workshop, shared: Path, name: str) -> None:
    (shared / name).chmod(0o777)
    for use in (workshop.build, workshop.find, workshop.find_host, list_modules):
        with pytest.raises(CacheError, match=rf"chmod 700 {shared / name}"):
            use()


@AS_ROOT
def test_its_owners_files_are_loaded_and_nobody_elses(workshop: Workshop, shared: Path) -> None:
    for path in (shared, *shared.rglob("*")):
        os.chown(path, 54321, 54321)
    (module,), library = workshop.find(), workshop.host
    assert workshop.new_compilations() == []
    for entry in (module, library):
        os.chown(entry.path, 11111, 11111)
    assert workshop.find() == [] and workshop.find_host() is None


# ---- kernels that came with the package ----


@pytest.fixture
def packaged(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = fill(workshop, workshop.root / "prebuilt")
    monkeypatch.setattr(caches, "_prebuilt", [root])
    return root


@AS_ROOT
def test_a_packages_kernels_are_trusted_as_its_code_is(workshop: Workshop, packaged: Path) -> None:
    """An installer may leave them to a group, or to the user who ran it."""
    for path in (packaged, *packaged.rglob("*")):
        path.chmod(0o777)
        os.chown(path, 54321, 54321)
    assert workshop.new_compilations() == []
    assert workshop.find()[0].path.is_relative_to(packaged)
    assert not workshop.cache.exists()


def test_a_packages_kernels_are_checked_all_the_same(workshop: Workshop, packaged: Path) -> None:
    flip_last_byte(workshop.find()[0].path)
    flip_last_byte(workshop.host.path)
    assert workshop.find() == [] and workshop.find_host() is None
    assert workshop.new_compilations() == sorted([*HOST, KERNEL_FILES[0]])


def test_code_may_bring_further_kernels(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fill(workshop, workshop.root / "beside")
    monkeypatch.setattr(caches, "_prebuilt", [workshop.root / "nowhere"])
    assert workshop.find() == []
    caches.add_prebuilt(root)
    assert [each.path.is_relative_to(root) for each in workshop.find()] == [True]
