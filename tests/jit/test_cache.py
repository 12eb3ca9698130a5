"""The kernel cache: what its keys depend on, and what is found without a build."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import support.tiny_build as tiny
from flashsmith.errors import ToolchainError
from flashsmith.jit import (
    SourceTree,
    Target,
    build_library,
    built_instances,
    list_libraries,
    units,
)
from support.tiny_build import EMULATOR, INSTANCES
from support.workshop import HOST_FILES, KERNEL_FILES, Workshop, flip_last_byte, replace

# ---- keys ----


def test_second_build_compiles_nothing(workshop: Workshop) -> None:
    assert workshop.new_compilations() == sorted([*HOST_FILES, KERNEL_FILES[0], "link"])
    assert workshop.new_compilations() == []


def test_larger_set_compiles_only_what_is_new(workshop: Workshop) -> None:
    workshop.build(1)
    # The registry reads the generated map of all kernels; other objects are reused.
    assert workshop.new_compilations(3) == sorted(["link", "registry.cpp", *KERNEL_FILES[1:3]])


def test_order_and_repeats_of_the_set_do_not_matter(workshop: Workshop) -> None:
    sources = SourceTree(workshop.csrc, tiny.generate)
    one = build_library(INSTANCES[:3], EMULATOR, sources=sources)
    other = build_library([*INSTANCES[2::-1], INSTANCES[1]], EMULATOR, sources=sources)
    assert one.path == other.path


def test_force_compiles_everything_again(workshop: Workshop) -> None:
    first = workshop.new_compilations(2)
    assert workshop.new_compilations(2, force=True) == first


def test_moved_sources_hit(workshop: Workshop) -> None:
    workshop.build()
    workshop.csrc = workshop.csrc.rename(workshop.root / "a b$c")
    assert workshop.new_compilations() == []


def _change_flag(_: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "_EMULATOR_FLAGS", (*units._EMULATOR_FLAGS, "-DOTHER"))


def _change_compiler(workshop: Workshop, _: pytest.MonkeyPatch) -> None:
    tiny.make_compiler(workshop.compiler, workshop.log, version="c++ (Other) 99.1")


def _change_format(_: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "FORMAT", units.FORMAT + 1)


Change = Callable[[Workshop, pytest.MonkeyPatch], None]


@pytest.mark.parametrize("change", [_change_flag, _change_compiler, _change_format])
def test_change_that_concerns_every_file_misses(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    everything = workshop.new_compilations()
    change(workshop, monkeypatch)
    assert workshop.new_compilations() == everything


def test_change_of_one_text_compiles_that_file(workshop: Workshop) -> None:
    workshop.build(2)
    replace(workshop.csrc / "host/registry.cpp", "return SUM", "return SUM + 0")
    assert workshop.new_compilations(2) == ["link", "registry.cpp"]


def test_change_of_a_header_compiles_what_includes_it(workshop: Workshop) -> None:
    workshop.build(2)
    header = workshop.csrc / "include/flashsmith/tiny.cuh"
    header.write_text(header.read_text() + "// a comment\n")
    assert workshop.new_compilations(2) == sorted(["link", *KERNEL_FILES[:2]])
    (workshop.csrc / "emulator/new.h").write_text("#pragma once\n")
    assert workshop.new_compilations(2) == []
    replace(workshop.csrc / "emulator/memory.cpp", "int", '#include "emulator/new.h"\nint')
    assert workshop.new_compilations(2) == ["link", "memory.cpp"]


def test_files_of_one_name_in_two_folders_are_two_files(workshop: Workshop) -> None:
    for folder in ("host/check", "host/launch"):
        (workshop.csrc / folder).mkdir()
        name = folder.replace("/", "_")
        (workshop.csrc / folder / "forward.cpp").write_text(f"int {name}() {{ return 0; }}\n")
    assert workshop.new_compilations().count("forward.cpp") == 2
    replace(workshop.csrc / "host/launch/forward.cpp", "0", "1")
    assert workshop.new_compilations() == ["forward.cpp", "link"]


def test_change_of_link_flags_only_links(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.build()
    monkeypatch.setattr(units, "_LINK_FLAGS", (*units._LINK_FLAGS, "-Wl,-O1"))
    assert workshop.new_compilations() == ["link"]


# ---- looking up without a build ----


def test_find_library_serves_a_subset(workshop: Workshop) -> None:
    assert workshop.find() is None
    library = workshop.build(3)
    found = workshop.find(2)
    assert found is not None
    assert found.path == library.path
    assert set(found.kernels) == {instance.slug for instance in INSTANCES[:3]}
    assert workshop.find(4) is None


def test_find_library_refuses_other_sources(workshop: Workshop) -> None:
    workshop.build()
    replace(workshop.csrc / "include/flashsmith/tiny.cuh", "7", "8")
    assert workshop.find() is None


@pytest.mark.parametrize(
    "file", ["host/registry.cpp", "emulator/memory.cpp", "include/flashsmith/host.cuh"]
)
def test_find_library_refuses_another_host(workshop: Workshop, file: str) -> None:
    (workshop.csrc / "include/flashsmith/host.cuh").write_text("\n")
    registry = workshop.csrc / "host/registry.cpp"
    registry.write_text(f'#include "flashsmith/host.cuh"\n{registry.read_text()}')
    workshop.build()
    assert workshop.find() is not None
    with (workshop.csrc / file).open("a") as source:
        source.write("// changed\n")
    assert workshop.find() is None


def test_a_library_is_found_whatever_it_does_not_include(workshop: Workshop) -> None:
    library = workshop.build()
    (workshop.csrc / "include/flashsmith/other.cuh").write_text("#pragma once\n")
    found = workshop.find()
    assert found is not None
    assert found.path == library.path


def test_built_kernels_are_those_that_would_be_found(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = SourceTree(workshop.csrc, tiny.generate)
    assert built_instances(EMULATOR, sources=sources) == set()
    workshop.build(2)
    workshop.build(1)
    assert built_instances(EMULATOR, sources=sources) == set(INSTANCES[:2])
    assert built_instances(Target.cuda("sm_80"), sources=sources) == set()
    replace(workshop.csrc / "include/flashsmith/tiny.cuh", "7", "8")
    assert built_instances(EMULATOR, sources=sources) == set()


def test_built_kernels_that_this_version_cannot_build_are_left_out(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.build(2)
    kind = type(INSTANCES[0].config)
    refused = {INSTANCES[0].config: ["it is of another version"]}
    monkeypatch.setattr(kind, "problems", lambda config, gpu: refused.get(config, []))
    sources = SourceTree(workshop.csrc, tiny.generate)
    assert built_instances(EMULATOR, sources=sources) == {INSTANCES[1]}


def test_find_library_refuses_a_damaged_one(workshop: Workshop) -> None:
    flip_last_byte(workshop.build().path)
    assert workshop.find() is None


def test_cached_library_needs_no_compiler(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = workshop.build()
    monkeypatch.setenv("FLASHSMITH_CXX", "/nowhere/c++")
    assert workshop.build().path == library.path
    with pytest.raises(ToolchainError, match="/nowhere/c"):
        workshop.build(2)


def test_list_libraries_newest_first(workshop: Workshop) -> None:
    assert list_libraries() == []
    paths = [workshop.build(count).path for count in (1, 2)]
    assert [library.path for library in list_libraries()] == paths[::-1]
