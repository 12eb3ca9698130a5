"""The key of a unit covers exactly the headers that its compiler reads, on both targets."""

from __future__ import annotations

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
from flashsmith.jit import PACKAGE_SOURCES, Target
from flashsmith.jit.headers import HeaderTree
from flashsmith.jit.units import TranslationUnit, find_toolchain, plan_units

SM80 = KernelId(get_kernel_progression_configs()[0])
SM90 = KernelId(get_sm90_kernel_progression_configs()[-1])
TARGETS = [Target.emulator(), Target.cuda("sm_90a")]
CSRC = PACKAGE_SOURCES.csrc
HEADERS = sorted(
    path.relative_to(CSRC).as_posix() for path in CSRC.rglob("*") if path.suffix in (".h", ".cuh")
)
INCLUDE = "include/flashsmith"
# The key covers both branches of `#ifdef FLASHSMITH_EMULATOR`, so it has some headers that only the
# other target reads.
EMULATOR_FILES = {name for name in HEADERS if name.startswith("emulator/")}
NOT_READ = {"emulator": {f"{INCLUDE}/ptx/wgmma_shapes.cuh"}, "cuda": EMULATOR_FILES}


@pytest.fixture(params=TARGETS, ids=lambda target: target.kind)
def target(request: pytest.FixtureRequest) -> Target:
    try:
        find_toolchain(request.param)
    except ToolchainError as error:
        pytest.skip(f"needs nvcc: {error}")
    return request.param


@pytest.fixture
def csrc(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CSRC, tmp_path / "csrc"))


def planned(target: Target, csrc: Path) -> list[TranslationUnit]:
    """Returns the units of an sm80 and an sm90 kernel."""
    instances = [SM80, SM90]
    generated = codegen.generate(instances)
    return plan_units(instances, generated, target, find_toolchain(target), csrc)


def files_read(unit: TranslationUnit, csrc: Path, folder: Path) -> set[str]:
    """Returns the headers below ``csrc`` that the compiler reads, by its option -MM."""
    for name, text in unit.files.items():
        (folder / name).write_text(text)
    command = [*unit.command, "-MM", unit.source_file]
    heuristic = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    paths = (Path(word).resolve() for word in heuristic.replace("\\\n", " ").split()[1:])
    return {path.relative_to(csrc).as_posix() for path in paths if path.is_relative_to(csrc)}


def changed_units(target: Target, csrc: Path, header: str) -> set[str]:
    """Returns the names of the units whose keys change with the text of ``header``."""
    before = {unit.name: unit.key for unit in planned(target, csrc)}
    path = csrc / header
    path.write_text(f"{path.read_text()}// changed\n")
    return {unit.name for unit in planned(target, csrc) if unit.key != before[unit.name]}


def test_a_changed_header_changes_the_units_that_the_compiler_reads_it_for(
    target: Target, csrc: Path, tmp_path: Path
) -> None:
    read = {unit.name: files_read(unit, csrc, tmp_path) for unit in planned(target, csrc)}
    empty = {name for name, headers in read.items() if not headers}  # units of the other target
    for header in HEADERS:
        changed = changed_units(target, csrc, header)
        readers = {name for name, headers in read.items() if header in headers}
        assert readers <= changed, header
        if header not in NOT_READ[target.kind]:
            assert changed - empty == readers, header
    assert any(header in headers for headers in read.values() for header in HEADERS)


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
    target: Target, csrc: Path, header: str, kernels: set[KernelId]
) -> None:
    slugs = {SM80.slug, SM90.slug}
    assert changed_units(target, csrc, header) & slugs == {kernel.slug for kernel in kernels}


def test_host_files_are_compiled_again_for_what_they_include_alone(
    target: Target, csrc: Path
) -> None:
    (csrc / "host/more.h").write_text("#pragma once\n")
    registry = csrc / "host/registry.cpp"
    registry.write_text(f'#include "host/more.h"\n{registry.read_text()}')
    assert changed_units(target, csrc, "host/more.h") == {"host-registry"}
    assert changed_units(target, csrc, f"{INCLUDE}/sm90/forward_kernel.cuh") == {SM90.slug}


def test_every_header_that_is_named_in_quotes_is_there(target: Target) -> None:
    """A missing header would be in no key. The emulator's headers are not on nvcc's path."""
    for unit in planned(target, CSRC):
        of_nvcc = unit.instance is not None and target.kind == "cuda"
        missing = {*unit.headers.missing} - (EMULATOR_FILES if of_nvcc else set())
        assert missing == set(), unit.label


def test_every_include_is_one_that_can_be_followed() -> None:
    """The scan cannot follow an include of a macro, as in `#include NAME`."""
    for path in CSRC.rglob("*.*"):
        for line in re.findall(r"^\s*#\s*include.*$", path.read_text(), re.MULTILINE):
            read = HeaderTree(CSRC).included({"line.cpp": line.strip()}, [CSRC, CSRC / "include"])
            names_package = re.search(r"include\s*<[\w./]+>", line)
            assert names_package or read.found or "flash_kernels.cuh" in line, f"{path}: {line}"
