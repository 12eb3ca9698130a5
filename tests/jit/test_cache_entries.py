"""The kernel cache: an entry belongs to its name, and its manifest is checked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flashsmith.jit import KernelCache, built_instances, list_modules
from support import tiny_build as tiny
from support.tiny_build import EMULATOR, INSTANCES
from support.workshop import HOST, KERNEL_FILES, Workshop, edit_manifest, replace

# ---- an entry belongs to its name ----


class Kind(NamedTuple):
    """One of the folders of the cache, with what is compiled if its entry is not sound."""

    folder: str
    slug: str
    again: list[str]

    def entry(self, workshop: Workshop) -> Path:
        """Returns the entry that a build of one kernel made."""
        (found,) = (workshop.cache / self.folder).glob(f"{self.slug}-*")
        return found


KERNEL = Kind("kernels", INSTANCES[0].slug, [KERNEL_FILES[0]])
HOST_LIBRARY = Kind("hosts", "host", ["link"])
# The objects of the host are read only if it has to be linked.
OBJECT = Kind("objects", "host-tiny", ["link", "tiny.cpp"])

EACH = pytest.mark.parametrize("kind", [KERNEL, HOST_LIBRARY, OBJECT], ids=lambda k: k.folder)
LOADED = pytest.mark.parametrize("kind", [KERNEL, HOST_LIBRARY], ids=lambda k: k.folder)


def built(workshop: Workshop, kind: Kind) -> Path:
    """Builds one kernel, and returns the entry; the next build reads it."""
    workshop.build()
    if kind is OBJECT:
        shutil.rmtree(workshop.cache / "hosts")
    return kind.entry(workshop)


def is_found(workshop: Workshop, kind: Kind) -> bool:
    """Returns whether a look-up without a build finds the module or the host library."""
    if kind is HOST_LIBRARY:
        return workshop.find_host() is not None
    found = workshop.find()
    sources = workshop.sources
    are_built = built_instances(EMULATOR, sources=sources) == {INSTANCES[0]}
    assert len(list_modules()) == len(found) and are_built == bool(found)
    return bool(found)


def put_in_place_of(entry: Path, other: Path) -> None:
    """Replaces an entry as a copy, a restored backup or an rsync between caches may do."""
    if entry.exists():
        shutil.rmtree(entry)
    shutil.copytree(other, entry)


def test_a_module_of_other_sources_under_this_name_is_built_anew(workshop: Workshop) -> None:
    (old,) = workshop.build()
    replace(workshop.csrc / "include/flashsmith/tiny.cuh", "7", "8")
    (new,) = workshop.build()
    put_in_place_of(new.directory, old.directory)
    assert workshop.find() == []
    assert tiny.sum_of_kernels(workshop.build(), workshop.sources) == 8


def test_a_host_library_of_other_sources_under_this_name_is_built_anew(workshop: Workshop) -> None:
    workshop.build()
    old = workshop.host.directory
    replace(workshop.csrc / "host/tiny.cpp", "return 1", "return 2")
    workshop.build()
    new = workshop.host.directory
    put_in_place_of(new, old)
    assert workshop.find_host() is None
    assert workshop.new_compilations() == ["link"]


def test_another_kernels_module_under_this_name_is_built_anew(workshop: Workshop) -> None:
    first, second = workshop.build(2)
    assert first.name == INSTANCES[0].name
    put_in_place_of(first.directory, second.directory)
    assert [module.name for module in workshop.find(2)] == [second.name]
    assert workshop.new_compilations(2) == [KERNEL_FILES[0]]


def test_another_kernels_module_of_this_slug_is_not_found(workshop: Workshop) -> None:
    """A renamed entry keeps its key; the manifest says which kernel it is."""
    first, second = workshop.build(2)
    key = second.directory.name.rpartition("-")[2]
    shutil.rmtree(first.directory)
    second.directory.rename(second.directory.with_name(f"{INSTANCES[0].slug}-{key}"))
    assert workshop.find(1) == []
    assert [module.name for module in list_modules()] == [second.name]


def test_another_object_under_this_name_is_compiled_again(workshop: Workshop) -> None:
    entry = built(workshop, OBJECT)
    (other,) = (workshop.cache / "objects").glob("emulator-memory-*")
    put_in_place_of(entry, other)
    assert workshop.new_compilations() == OBJECT.again


@EACH
def test_the_whole_key_counts(workshop: Workshop, kind: Kind) -> None:
    """A name holds only the first 16 digits of a key."""

    def change_the_end(manifest: dict[str, Any]) -> None:
        assert len(manifest["key"]) == 64
        manifest["key"] = manifest["key"][:16] + "0" * 48

    entry = built(workshop, kind)
    edit_manifest(entry, change_the_end)
    if kind is HOST_LIBRARY:  # it is found by its sources, whatever its compiler
        assert workshop.new_compilations() == []
    else:
        assert workshop.new_compilations() == kind.again


@LOADED
def test_an_entry_that_was_renamed_is_not_found(workshop: Workshop, kind: Kind) -> None:
    entry = built(workshop, kind)
    entry.rename(entry.with_name(f"{kind.slug}-0123456789abcdef"))
    assert not is_found(workshop, kind)
    assert workshop.new_compilations() == kind.again


# ---- one odd manifest stops nothing ----


def without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest.pop(name)


def with_value(name: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest.update({name: value})


ODD_EVERYWHERE = {
    "no date": without("created"),
    "a date in words": with_value("created", "x"),
    "a date that is no number": with_value("created", float("nan")),
    "no key": without("key"),
    "a key that is a number": with_value("key", 7),
    "no format": without("format"),
    "another format": with_value("format", 1),
    "no artifact": without("artifact"),
    "no hash of the sources": without("source_hash"),
    "a hash of the sources that is a number": with_value("source_hash", 7),
    "no C library": without("libc"),
    "no machine": without("binary"),
    "a machine that is a list": with_value("binary", []),
}
ODD_MODULES = {
    "no name": without("name"),
    "the name is a list": with_value("name", []),
    "no target": without("target"),
    "the target is a word": with_value("target", "emulator"),
    "an unknown kind": with_value("target", {"kind": "tpu", "archs": []}),
    "an unknown architecture": with_value("target", {"kind": "cuda", "archs": ["sm_1"]}),
    "architectures that are numbers": with_value("target", {"kind": "cuda", "archs": [80]}),
    "no emulator": without("emulator"),
    "another emulator": with_value("emulator", "0" * 64),
    "no functions": without("functions"),
    "functions are a list": with_value("functions", []),
    "functions are empty": with_value("functions", {}),
    "a function is a number": with_value("functions", {"tiny_kernel": 7}),
    "no shared memory": without("dynamic_shared_bytes"),
    "no config": without("config"),
    "the lint is a word": with_value("lint", "sound"),
    "the lint is empty": with_value("lint", {}),
    "an early release is a word": with_value("lint", {"early_releases": ["x"], "not_linted": []}),
    "resources are a word": with_value("resources", "x"),
    "a resource is a word": with_value("resources", ["x"]),
    "a resource has other names": with_value("resources", [{"x": 1}]),
    "warnings are numbers": with_value("performance_warnings", [3]),
}


@pytest.mark.parametrize(
    "odd", [*ODD_EVERYWHERE.values(), *ODD_MODULES.values()], ids=[*ODD_EVERYWHERE, *ODD_MODULES]
)
def test_an_odd_manifest_of_a_module_counts_as_absent(
    workshop: Workshop, odd: Callable[[dict[str, Any]], object]
) -> None:
    first, second = workshop.build(2)
    edit_manifest(first.directory, odd)
    assert [module.path for module in workshop.find(2)] == [second.path]
    assert built_instances(EMULATOR, sources=workshop.sources) == {INSTANCES[1]}
    assert second.path in [module.path for module in list_modules()]


@pytest.mark.parametrize("odd", ODD_EVERYWHERE.values(), ids=ODD_EVERYWHERE)
def test_an_odd_manifest_of_a_host_library_counts_as_absent(
    workshop: Workshop, odd: Callable[[dict[str, Any]], object]
) -> None:
    edit_manifest(built(workshop, HOST_LIBRARY), odd)
    assert workshop.find_host() is None


@EACH
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_manifest_nested_without_end_counts_as_absent(
    workshop: Workshop, opening: str, kind: Kind
) -> None:
    (built(workshop, kind) / "manifest.json").write_text(opening * 100_000)
    assert workshop.new_compilations() == kind.again


@pytest.mark.parametrize("name", ["functions", "lint", "performance_warnings", "artifact"])
@pytest.mark.parametrize("value", [None, "x", 3, [["x"]]], ids=repr)
def test_a_module_with_an_odd_manifest_is_compiled_again(
    workshop: Workshop, name: str, value: Any
) -> None:
    edit_manifest(built(workshop, KERNEL), with_value(name, value))
    assert workshop.new_compilations() == KERNEL.again


@pytest.mark.parametrize("name", ["command", "artifact"])
@pytest.mark.parametrize("value", [None, 3, [["x"]]], ids=repr)
def test_an_object_with_an_odd_manifest_is_compiled_again(
    workshop: Workshop, name: str, value: Any
) -> None:
    edit_manifest(built(workshop, OBJECT), with_value(name, value))
    assert workshop.new_compilations() == OBJECT.again


# ---- the file that a manifest names, and its owner ----


@EACH
@pytest.mark.parametrize("written", ["{outside}", "../{name}/../outside.so", "..", ".", "a/b", ""])
def test_a_manifest_names_a_file_beside_it(workshop: Workshop, written: str, kind: Kind) -> None:
    entry = built(workshop, kind)
    (artifact,) = (path for path in entry.iterdir() if path.suffix in (".so", ".o"))
    outside = workshop.cache / "outside.so"
    shutil.copy(artifact, outside)
    file = written.format(outside=outside, name=entry.name)
    edit_manifest(entry, lambda manifest: manifest["artifact"].update({"file": file}))
    assert kind is OBJECT or not is_found(workshop, kind)
    assert workshop.new_compilations() == kind.again


@EACH
def test_a_manifest_that_others_can_write_counts_as_absent(workshop: Workshop, kind: Kind) -> None:
    (built(workshop, kind) / "manifest.json").chmod(0o666)
    assert kind is OBJECT or not is_found(workshop, kind)
    assert workshop.new_compilations() == kind.again


@EACH
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_manifest_of_somebody_else_counts_as_absent(workshop: Workshop, kind: Kind) -> None:
    os.chown(built(workshop, kind) / "manifest.json", 54321, 54321)
    assert kind is OBJECT or not is_found(workshop, kind)
    assert workshop.new_compilations() == kind.again


def test_a_link_to_an_entry_of_another_name_counts_as_absent(workshop: Workshop) -> None:
    first, second = workshop.build(2)
    shutil.rmtree(first.directory)
    first.directory.symlink_to(second.directory)
    assert workshop.new_compilations(2) == [KERNEL_FILES[0]]


@LOADED
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_link_to_a_file_of_somebody_else_is_not_followed(workshop: Workshop, kind: Kind) -> None:
    (library,) = built(workshop, kind).glob("*.so")
    planted = workshop.root / "planted.so"
    library.rename(planted)
    os.chown(planted, 54321, 54321)
    library.symlink_to(planted)
    assert not is_found(workshop, kind)
    assert workshop.new_compilations() == kind.again


def test_whatever_the_umask_a_manifest_is_written_by_its_owner_alone(workshop: Workshop) -> None:
    before = os.umask(0)
    try:
        workshop.build()
    finally:
        os.umask(before)
    manifests = [*workshop.cache.glob("*/*/manifest.json")]
    assert len(manifests) == len(HOST) + 1
    assert {manifest.stat().st_mode & 0o777 for manifest in manifests} == {0o644}
    assert workshop.new_compilations() == []


@EACH
def test_a_sound_entry_is_read_again(workshop: Workshop, kind: Kind) -> None:
    """This is what the tests above rely on: an entry whose manifest is rewritten unchanged is
    valid."""
    entry = built(workshop, kind)
    edit_manifest(entry, lambda manifest: None)
    assert KernelCache().read(entry) is not None
    assert workshop.new_compilations() == (["link"] if kind is OBJECT else [])
