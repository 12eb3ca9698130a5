"""The host library in the cache: what it is built from, and when it is found."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess

import pytest

import support.tiny_build as tiny
from flashsmith.errors import BuildError
from flashsmith.jit import build_host, find_tvm_ffi, units, why_no_host
from support.workshop import (
    HOST,
    KERNEL_FILES,
    Workshop,
    append_comment,
    edit_manifest,
    flip_last_byte,
    replace,
)

# ---- what it is built from ----


def test_it_is_built_once_and_without_a_kernel(workshop: Workshop) -> None:
    library = build_host(sources=workshop.sources)
    assert tiny.compiled(workshop.log) == sorted(HOST)
    assert build_host(sources=workshop.sources).path == workshop.host.path == library.path
    assert tiny.compiled(workshop.log) == sorted(HOST)
    assert workshop.new_compilations(2) == sorted(KERNEL_FILES[:2])


@pytest.mark.parametrize(
    ("flags", "new", "expected"),
    [
        ("_HOST_FLAGS", "-DOTHER", sorted(HOST)),
        ("LINK_FLAGS", "-Wl,-O1", ["link"]),
        ("_HOST_LIBRARIES", "-lm", ["link"]),
    ],
)
def test_a_change_of_its_flags_builds_it(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, flags: str, new: str, expected: list[str]
) -> None:
    """A version that changes flags alone must not find the library of the version before."""
    workshop.build()
    monkeypatch.setattr(units, flags, (*getattr(units, flags), new))
    assert workshop.find_host() is None
    assert workshop.new_compilations() == expected


@pytest.mark.parametrize(
    "file", ["host/tiny.cpp", "emulator/memory.cpp", "include/flashsmith/host.cuh"]
)
def test_it_is_of_the_present_sources(workshop: Workshop, file: str) -> None:
    (workshop.csrc / "include/flashsmith/host.cuh").write_text("\n")
    source = workshop.csrc / "host/tiny.cpp"
    source.write_text(f'#include "flashsmith/host.cuh"\n{source.read_text()}')
    workshop.build()
    assert workshop.find_host() is not None
    append_comment(workshop.csrc / file)
    assert workshop.find_host() is None


@pytest.mark.parametrize(
    ("script", "expected", "is_of_host"),
    [
        ("host/exports.map", ["link"], True),
        ("emulator/kernels.map", [KERNEL_FILES[0]], False),
    ],
)
def test_a_change_of_a_linker_script_links_what_it_is_for(
    workshop: Workshop, script: str, expected: list[str], is_of_host: bool
) -> None:
    workshop.build()
    with (workshop.csrc / script).open("a") as file:
        file.write("# changed\n")
    assert (workshop.find_host() is None) == is_of_host
    assert (workshop.find() == []) == (not is_of_host)
    assert workshop.new_compilations() == expected


def test_files_of_one_name_in_two_folders_are_two_files(workshop: Workshop) -> None:
    for folder in ("host/check", "host/launch"):
        (workshop.csrc / folder).mkdir()
        name = folder.replace("/", "_")
        (workshop.csrc / folder / "forward.cpp").write_text(f"int {name}() {{ return 0; }}\n")
    assert workshop.new_compilations().count("forward.cpp") == 2
    replace(workshop.csrc / "host/launch/forward.cpp", "0", "1")
    assert workshop.new_compilations() == ["forward.cpp", "link"]


@pytest.mark.parametrize("file", ["host/tiny.cpp", "host/exports.map", "emulator/memory.cpp"])
def test_a_source_that_changes_while_it_is_linked_leaves_no_library(
    workshop: Workshop, file: str
) -> None:
    """Its objects are of the sources before, and the linker may have read either script."""
    honest = workshop.compiler.read_text()
    change = f'case " $* " in *" @"*) echo "// changed" >> {workshop.csrc / file};; esac\nexec '
    if file.endswith(".map"):
        change = change.replace("//", "#")
    workshop.compiler.write_text(honest.replace("exec ", change))
    with pytest.raises(BuildError, match=r"changed while it was built, so .*: build again"):
        workshop.build()
    assert list((workshop.cache / "hosts").iterdir()) == []
    workshop.compiler.write_text(honest)
    assert "link" in workshop.new_compilations()


def test_an_emulated_kernel_needs_the_host_of_its_emulator(workshop: Workshop) -> None:
    """The loader finds the host library by a name that has the emulator's hash, so that a kernel
    never calls functions of another emulator."""
    old = workshop.build()
    assert tiny.sum_of_kernels(old, workshop.sources) == 7
    append_comment(workshop.csrc / "emulator/memory.cpp")
    workshop.build()
    with pytest.raises(AssertionError, match=r"libflashsmith-[0-9a-f]{16}\.so: cannot open"):
        tiny.sum_of_kernels(old, workshop.sources)


# ---- when it is found ----


def test_of_several_compilers_the_newest_is_found(workshop: Workshop) -> None:
    workshop.build()
    old = workshop.host
    aside = workshop.root / "aside"
    old.directory.rename(aside)
    tiny.make_compiler(workshop.compiler, workshop.log, version="c++ (Other) 99.1")
    workshop.build()
    new = workshop.host
    aside.rename(old.directory)
    assert workshop.host.path == new.path != old.path
    flip_last_byte(new.path)  # the one before serves
    assert workshop.host.path == old.path


def test_a_damaged_one_is_not_found(workshop: Workshop) -> None:
    workshop.build()
    flip_last_byte(workshop.host.path)
    assert workshop.find_host() is None


@pytest.mark.parametrize(
    ("folders", "expected"), [(["hosts"], ["link"]), (["hosts", "objects"], sorted(HOST))]
)
def test_one_that_was_removed_is_built_anew_for_the_same_kernels(
    workshop: Workshop, folders: list[str], expected: list[str]
) -> None:
    workshop.build()
    for folder in folders:
        shutil.rmtree(workshop.cache / folder)
    assert workshop.new_compilations() == expected


def test_one_that_this_process_refused_is_not_found_until_it_is_built_again(
    workshop: Workshop,
) -> None:
    workshop.build()
    library = workshop.host
    library.refuse()
    assert workshop.find_host() is None
    assert build_host(sources=workshop.sources).manifest == library.manifest  # it is sound
    library.set_aside()
    again = build_host(sources=workshop.sources)
    assert again.path == library.path == workshop.host.path
    assert again.manifest["created"] > library.manifest["created"]


def test_setting_aside_spares_the_library_that_was_built_since(workshop: Workshop) -> None:
    """Another process may have set it aside and built it again meanwhile."""
    workshop.build()
    library = workshop.host
    library.set_aside()
    workshop.build()
    library.set_aside()
    assert workshop.host.path == library.path


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("binary", "ELF 0201 b700"),  # aarch64
        ("libc", "glibc 999.1"),
        ("libc", "musl 1.2"),
    ],
)
def test_that_of_another_machine_is_left_to_it(workshop: Workshop, field: str, value: str) -> None:
    workshop.build()
    edit_manifest(workshop.host.directory, lambda manifest: manifest.update({field: value}))
    assert workshop.find_host() is None
    assert len(list((workshop.cache / "hosts").iterdir())) == 1


# ---- tvm-ffi ----


@pytest.mark.parametrize(
    ("needed", "serves"),
    [
        *(("0.1.15.post2", True), ("0.1.15", True), ("0.1.9", True)),
        *(("0.1.15.post3", False), ("0.1.16", False), ("0.2.0", False), ("0.0.20", False)),
        ("1.1.9", False),
    ],
)
def test_one_works_with_the_tvm_ffi_that_it_was_compiled_with_and_newer_ones(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, needed: str, serves: bool
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.1.15.post2")
    workshop.build()
    edit_manifest(workshop.host.directory, lambda manifest: manifest.update(tvm_ffi=needed))
    assert (workshop.find_host() is not None) == serves


def test_after_a_change_of_tvm_ffi_another_is_built_where_the_old_one_does_not_serve(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    for version in ("0.1.15", "0.1.16", "0.1.10", "0.1.16"):
        monkeypatch.setattr(importlib.metadata, "version", lambda _, version=version: version)
        built.append(build_host(sources=workshop.sources).manifest["tvm_ffi"])
    assert built == ["0.1.15", "0.1.15", "0.1.10", "0.1.10"]  # 0.1.16 takes the newest file


def test_an_unknown_tvm_ffi_is_trusted(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    workshop.build()
    monkeypatch.setattr(importlib.metadata, "version", unknown)
    assert workshop.find_host() is not None


def test_a_shared_one_of_another_tvm_ffi_is_named(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.build()
    library = workshop.host
    shared = str(shutil.move(workshop.cache, workshop.root / "shared"))
    monkeypatch.setenv("FLASHSMITH_SHARED_CACHE", shared)
    assert why_no_host(workshop.sources) is None
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.2.1")
    needed = library.manifest["tvm_ffi"]
    said = why_no_host(workshop.sources)
    assert said is not None and said.startswith(f"the host library {shared}/hosts/")
    assert f"was compiled with tvm-ffi {needed}, and 0.2.1 is installed" in said
    assert said.endswith(f"`pip install 'apache-tvm-ffi~={needed}'`")


def test_tvm_ffi_is_called_by_functions_of_c_alone() -> None:
    """These are what newer versions keep; names and layouts of its C++ classes may change."""
    command = ["nm", "-D", "--undefined-only", build_host().path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [line.split()[-1] for line in done.stdout.splitlines()]
    called = {name for name in names if "tvm" in name.lower()}
    assert called and all(name.startswith("TVMFFI") for name in called)
    headers = (find_tvm_ffi().include / "tvm/ffi").rglob("*c_*api.h")
    declared = "".join(path.read_text() for path in headers)
    assert all(f" {name}(" in declared for name in called)
