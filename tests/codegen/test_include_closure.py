"""The key of a unit covers exactly the headers that its compiler reads: of the host library, of
emulated kernels, and of kernels for GPUs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flashsmith import codegen
from flashsmith.configs import (
    KernelId,
    get_kernel_progression_configs,
    get_sm90_kernel_progression_configs,
)
from flashsmith.errors import ToolchainError
from flashsmith.jit import PACKAGE_SOURCES, Target, find_cuda_toolkit
from flashsmith.jit.headers import HeaderTree
from flashsmith.jit.kernel_compilers import EmulatorCompiler, HostToolchain, NvccCompiler
from flashsmith.jit.sources import emulator_hash
from flashsmith.jit.units import TranslationUnit, plan_host, plan_kernels

SM80 = KernelId(get_kernel_progression_configs()[0])
SM90 = KernelId(get_sm90_kernel_progression_configs()[-1])
CSRC = PACKAGE_SOURCES.csrc
HEADERS = sorted(
    path.relative_to(CSRC).as_posix() for path in CSRC.rglob("*") if path.suffix in (".h", ".cuh")
)
INCLUDE = "include/flashsmith"
# The key covers both branches of `#ifdef FLASHSMITH_EMULATOR`, so it has some headers that only the
# other target reads.
EMULATOR_FILES = {name for name in HEADERS if name.startswith("emulator/")}
_WITHOUT_PTX = {f"{INCLUDE}/ptx/wgmma_shapes.cuh"}
NOT_READ = {"host": _WITHOUT_PTX, "emulator": _WITHOUT_PTX, "cuda": EMULATOR_FILES}


@pytest.fixture(params=["host", "emulator", "cuda"])
def kind(request: pytest.FixtureRequest) -> str:
    try:
        find_cuda_toolkit()
    except ToolchainError as error:
        if request.param == "cuda":
            pytest.skip(f"needs nvcc: {error}")
    return str(request.param)


@pytest.fixture
def csrc(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CSRC, tmp_path / "csrc"))


def planned(kind: str, csrc: Path, emulator: str = "") -> list[TranslationUnit]:
    """Returns the units of the host library, or of an sm80 and an sm90 kernel.

    emulator: The hash of the emulator's sources, which is in the keys of emulated kernels.
    """
    toolchain = HostToolchain.find()
    if kind == "host":
        return plan_host(toolchain, csrc)
    instances = [SM80, SM90]
    generated = codegen.generate(instances)
    if kind == "emulator":
        emulated = EmulatorCompiler(toolchain, Path(os.devnull), emulator)
        return plan_kernels(instances, generated, Target.emulator(), emulated, csrc)
    nvcc = NvccCompiler(find_cuda_toolkit(), toolchain.cxx)
    return plan_kernels(instances, generated, Target.cuda("sm_90a"), nvcc, csrc)


def files_read(unit: TranslationUnit, csrc: Path, folder: Path) -> set[str]:
    """Returns the headers below ``csrc`` that the compiler reads, by its option -MM."""
    for name, text in unit.files.items():
        (folder / name).write_text(text)
    phases = ("-cubin", "-c")  # nvcc takes one
    command = [*(word for word in unit.command if word not in phases), "-MM", unit.source_file]
    heuristic = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    paths = (Path(word).resolve() for word in heuristic.replace("\\\n", " ").split()[1:])
    return {path.relative_to(csrc).as_posix() for path in paths if path.is_relative_to(csrc)}


def changed_units(kind: str, csrc: Path, header: str) -> set[str]:
    """Returns the names of the units whose keys change with the text of ``header``."""
    before = {unit.name: unit.key for unit in planned(kind, csrc)}
    path = csrc / header
    path.write_text(f"{path.read_text()}// changed\n")
    return {unit.name for unit in planned(kind, csrc) if unit.key != before[unit.name]}


def test_a_changed_header_changes_the_units_that_the_compiler_reads_it_for(
    kind: str, csrc: Path, tmp_path: Path
) -> None:
    read = {unit.name: files_read(unit, csrc, tmp_path) for unit in planned(kind, csrc)}
    empty = {name for name, headers in read.items() if not headers}  # units that include none
    for header in HEADERS:
        changed = changed_units(kind, csrc, header)
        readers = {name for name, headers in read.items() if header in headers}
        assert readers <= changed, header
        if header not in NOT_READ[kind]:
            assert changed - empty == readers, header
    assert any(header in headers for headers in read.values() for header in HEADERS)


@pytest.mark.parametrize("kind", ["emulator", "cuda"], indirect=True)
@pytest.mark.parametrize(
    ("header", "kernels"),
    [
        (f"{INCLUDE}/sm80/forward_kernel.cuh", {SM80}),
        (f"{INCLUDE}/sm90/forward_kernel.cuh", {SM90}),
        (f"{INCLUDE}/ptx/cp_async.cuh", {SM80}),
        (f"{INCLUDE}/ptx/tma.cuh", {SM90}),
        (f"{INCLUDE}/ptx/platform.cuh", {SM80, SM90}),
        (f"{INCLUDE}/flash_attention.cuh", {SM80}),
        (f"{INCLUDE}/params.h", {SM80, SM90}),
        (f"{INCLUDE}/attention/softmax.cuh", {SM80, SM90}),
        ("host/launch.h", set()),
    ],
)
def test_kernels_are_compiled_again_for_their_own_headers_alone(
    kind: str, csrc: Path, header: str, kernels: set[KernelId]
) -> None:
    assert changed_units(kind, csrc, header) == {kernel.slug for kernel in kernels}


def test_host_files_are_compiled_again_for_what_they_include_alone(csrc: Path) -> None:
    (csrc / "host/more.h").write_text("#pragma once\n")
    exports = csrc / "host/exports.cpp"
    exports.write_text(f'#include "host/more.h"\n{exports.read_text()}')
    assert changed_units("host", csrc, "host/more.h") == {"host-exports"}
    assert changed_units("host", csrc, f"{INCLUDE}/sm90/forward_kernel.cuh") == set()


@pytest.mark.parametrize("file", ["fiber.cpp", "fiber.h"])
def test_emulated_kernels_are_compiled_again_for_any_file_of_the_emulator(
    csrc: Path, file: str
) -> None:
    """They call its functions, so a kernel and the host library must be of one emulator."""

    def keys() -> list[str]:
        return [unit.key for unit in planned("emulator", csrc, emulator_hash(csrc))]

    before = keys()
    assert keys() == before
    path = csrc / "emulator" / file
    path.write_text(f"{path.read_text()}// changed\n")
    assert not {*keys()} & {*before}


def test_every_header_that_is_named_in_quotes_is_there(kind: str) -> None:
    """A missing header would be in no key. The emulator's headers are not on nvcc's path."""
    for unit in planned(kind, CSRC):
        missing = {*unit.headers.missing} - (EMULATOR_FILES if kind == "cuda" else set())
        assert missing == set(), unit.label


def test_every_include_is_one_that_can_be_followed() -> None:
    """The scan cannot follow an include of a macro, as in `#include NAME`."""
    for path in CSRC.rglob("*.*"):
        for line in re.findall(r"^\s*#\s*include.*$", path.read_text(), re.MULTILINE):
            read = HeaderTree(CSRC).included({"line.cpp": line.strip()}, [CSRC, CSRC / "include"])
            names_package = re.search(r"include\s*<[\w./]+>", line)
            assert names_package or read.found, f"{path}: {line}"
