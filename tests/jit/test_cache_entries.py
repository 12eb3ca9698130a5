"""The kernel cache: an entry belongs to its name, and its manifest is checked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashsmith.jit import KernelCache, SourceTree, built_instances, list_libraries
from support import tiny_build as tiny
from support.tiny_build import EMULATOR, INSTANCES
from support.workshop import KERNEL_FILES, Workshop, edit_manifest, replace

# ---- an entry belongs to its name ----


def put_in_place_of(entry: Path, other: Path) -> None:
    """Replaces an entry as a copy, a restored backup or an rsync between caches may do."""
    if entry.exists():
        shutil.rmtree(entry)
    shutil.copytree(other, entry)


def test_a_library_of_other_sources_under_this_name_is_built_anew(workshop: Workshop) -> None:
    old = workshop.build()
    replace(workshop.csrc / "include/flashsmith/tiny.cuh", "7", "8")
    new = workshop.build()
    put_in_place_of(new.directory, old.directory)
    assert tiny.sum_of_kernels(workshop.build()) == 8


def test_another_kernels_library_under_this_name_is_built_anew(workshop: Workshop) -> None:
    of_two, of_one = workshop.build(2), workshop.build(1)
    put_in_place_of(of_one.directory, of_two.directory)
    assert workshop.new_compilations(1) == ["link"]


def test_another_object_under_this_name_is_compiled_again(workshop: Workshop) -> None:
    library = workshop.build(2)
    first, second = (
        next((workshop.cache / "objects").glob(f"{instance.slug}-*")) for instance in INSTANCES[:2]
    )
    put_in_place_of(first, second)
    shutil.rmtree(library.directory)
    assert workshop.new_compilations(2) == sorted([KERNEL_FILES[0], "link"])


def test_the_whole_key_counts(workshop: Workshop) -> None:
    """A name holds only the first 16 digits of a key."""
    directory = workshop.build().directory

    def change_the_end(manifest: dict[str, Any]) -> None:
        assert len(manifest["key"]) == 64
        manifest["key"] = manifest["key"][:16] + "0" * 48

    edit_manifest(directory, change_the_end)
    assert workshop.new_compilations() == ["link"]


def test_a_library_that_was_renamed_is_not_listed(workshop: Workshop) -> None:
    directory = workshop.build().directory
    directory.rename(directory.with_name("emulator-1-0123456789abcdef"))
    assert list_libraries() == []


# ---- one odd manifest stops nothing ----


def without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest.pop(name)


def with_value(name: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest.update({name: value})


ODD = {
    "no kernels": without("kernels"),
    "kernels are a list": with_value("kernels", []),
    "a kernel is a word": with_value("kernels", {"x": "y"}),
    "a kernel without a name": with_value("kernels", {"x": {"source_hash": "", "not_linted": []}}),
    "no target": without("target"),
    "the target is a word": with_value("target", "emulator"),
    "an unknown kind": with_value("target", {"kind": "tpu", "archs": []}),
    "an unknown architecture": with_value("target", {"kind": "cuda", "archs": ["sm_1"]}),
    "no date": without("created"),
    "a date in words": with_value("created", "x"),
    "a date that is no number": with_value("created", float("nan")),
    "no key": without("key"),
    "a key that is a number": with_value("key", 7),
    "no hash of the host": without("host_hash"),
    "no format": without("format"),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_an_odd_manifest_counts_as_absent(
    workshop: Workshop, odd: Callable[[dict[str, Any]], object]
) -> None:
    other = workshop.build(2)
    edit_manifest(workshop.build().directory, odd)
    assert [library.path for library in list_libraries()] == [other.path]
    sources = SourceTree(workshop.csrc, tiny.generate)
    assert built_instances(EMULATOR, sources=sources) == set(INSTANCES[:2])
    found = workshop.find()
    assert found is not None and found.path == other.path


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_manifest_nested_without_end_counts_as_absent(workshop: Workshop, opening: str) -> None:
    other = workshop.build(2)
    (workshop.build().directory / "manifest.json").write_text(opening * 100_000)
    assert [library.path for library in list_libraries()] == [other.path]
    assert workshop.new_compilations() == ["link"]


@pytest.mark.parametrize("name", ["kernels", "lint", "performance_warnings", "artifact"])
@pytest.mark.parametrize("value", [None, "x", 3, [["x"]]], ids=repr)
def test_an_odd_manifest_of_an_object_has_it_compiled_again(
    workshop: Workshop, name: str, value: Any
) -> None:
    shutil.rmtree(workshop.build().directory)
    (entry,) = (workshop.cache / "objects").glob(f"{INSTANCES[0].slug}-*")
    edit_manifest(entry, with_value(name, value))
    assert workshop.new_compilations() == sorted([KERNEL_FILES[0], "link"])


# ---- the file that a manifest names, and its owner ----


@pytest.mark.parametrize("written", ["{outside}", "../{name}/../outside.so", "..", ".", "a/b", ""])
def test_a_manifest_names_a_file_beside_it(workshop: Workshop, written: str) -> None:
    library = workshop.build()
    outside = workshop.cache / "outside.so"
    shutil.copy(library.path, outside)
    file = written.format(outside=outside, name=library.directory.name)
    edit_manifest(library.directory, lambda manifest: manifest["artifact"].update({"file": file}))
    assert list_libraries() == []
    assert workshop.new_compilations() == ["link"]


def test_a_manifest_that_others_can_write_counts_as_absent(workshop: Workshop) -> None:
    manifest = workshop.build().directory / "manifest.json"
    manifest.chmod(0o666)
    assert list_libraries() == []
    assert workshop.new_compilations() == ["link"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_manifest_of_somebody_else_counts_as_absent(workshop: Workshop) -> None:
    os.chown(workshop.build().directory / "manifest.json", 54321, 54321)
    assert list_libraries() == []
    assert workshop.new_compilations() == ["link"]


def test_a_link_to_an_entry_of_another_name_counts_as_absent(workshop: Workshop) -> None:
    of_two, of_one = workshop.build(2), workshop.build(1)
    shutil.rmtree(of_one.directory)
    of_one.directory.symlink_to(of_two.directory)
    assert workshop.new_compilations(1) == ["link"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_link_to_a_file_of_somebody_else_is_not_followed(workshop: Workshop) -> None:
    library = workshop.build()
    planted = workshop.root / "planted.so"
    library.path.rename(planted)
    os.chown(planted, 54321, 54321)
    library.path.symlink_to(planted)
    assert workshop.find() is None and list_libraries() == []
    assert workshop.new_compilations() == ["link"]


def test_whatever_the_umask_a_manifest_is_written_by_its_owner_alone(workshop: Workshop) -> None:
    before = os.umask(0)
    try:
        library = workshop.build()
    finally:
        os.umask(before)
    assert (library.directory / "manifest.json").stat().st_mode & 0o777 == 0o644
    assert workshop.new_compilations() == []


def test_a_sound_entry_is_read_again(workshop: Workshop) -> None:
    """This is what the tests above rely on: an entry whose manifest is rewritten unchanged is
    valid."""
    library = workshop.build()
    edit_manifest(library.directory, lambda manifest: None)
    assert KernelCache().read(library.directory) is not None
    assert workshop.new_compilations() == []
