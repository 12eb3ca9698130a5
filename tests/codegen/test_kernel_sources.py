"""The hash that ties measurements to kernel sources: what changes it, and what does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flashsmith.configs import CONFIG_CLASSES, FlashForwardKernelConfig, Sm90ForwardKernelConfig
from flashsmith.jit import PACKAGE_SOURCES, kernel_source_hash, kernel_source_stamp, stamp_field

SM80, SM90 = FlashForwardKernelConfig, Sm90ForwardKernelConfig
INCLUDE = Path("include") / "flashsmith"
# The names of the families in a stamp.
OF_SM80, OF_SM90 = (
    {stamp_field(kind).removeprefix("kernels_") for kind in CONFIG_CLASSES if kind.family == family}
    for family in ("sm80", "sm90")
)
BACKWARD = {name for name in OF_SM80 | OF_SM90 if name.endswith("_backward")}
ALL = OF_SM80 | OF_SM90


@pytest.fixture
def csrc(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PACKAGE_SOURCES.csrc, tmp_path / "csrc"))


def changed(csrc: Path, file: Path | str, old: str, new: str) -> set[str]:
    """Returns the families whose hash changes when ``old`` becomes ``new`` in a file."""
    kernel_source_hash.cache_clear()
    before = kernel_source_stamp(csrc)
    path = csrc / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    kernel_source_hash.cache_clear()
    after = kernel_source_stamp(csrc)
    return {name.removeprefix("kernels_") for name in before if before[name] != after[name]}


def test_fields_are_called_after_the_families() -> None:
    assert [stamp_field(SM80), stamp_field(SM90)] == ["kernels_sm80", "kernels_sm90"]
    stamp = kernel_source_stamp()
    assert stamp["kernels_sm80"] == kernel_source_hash(SM80) != kernel_source_hash(SM90)
    assert all(len(value) == 16 for value in stamp.values())


@pytest.mark.parametrize(
    ("file", "families"),
    [
        (INCLUDE / SM80.family / "smem_tile.cuh", OF_SM80),
        (INCLUDE / SM80.family / "forward_block.cuh", {"sm80"}),
        (INCLUDE / SM90.family / "producer.cuh", {"sm90"}),
        (INCLUDE / "attention" / "mask.cuh", ALL),
        (INCLUDE / "attention" / "query_range.cuh", BACKWARD),
        (INCLUDE / "ptx" / "tma.cuh", OF_SM90),
        (INCLUDE / "ptx" / "math.cuh", ALL),
        (INCLUDE / "backward_params.h", BACKWARD),
        (INCLUDE / "params.h", ALL),
        ("emulator/device.h", set()),
        ("host/launch_gpu.cpp", set()),
        ("host/check/check.h", set()),
    ],
)
def test_code_counts_for_the_families_that_include_it(
    csrc: Path, file: Path | str, families: set[str]
) -> None:
    assert changed(csrc, file, "namespace flashsmith", "int more; namespace flashsmith") == families


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("#pragma once\n", "#pragma once\n\n// A remark.\n/* and\n   another */\n", False),
        ("// The online softmax", "// The offline softmax", False),
        ("  float R_[kHalves];", "  float\tR_[kHalves];", False),
        ("return reduce_row(maximum, ", "return reduce_row(\n        maximum,\n        ", False),
        ("float R_[kHalves];", "float R_[4];", True),
        ("#include <cmath>", "#include <cmath>\n#define MORE", True),
    ],
)
def test_comments_and_spacing_make_no_machine_code(
    csrc: Path, old: str, new: str, counts: bool
) -> None:
    file = INCLUDE / "attention" / "softmax.cuh"
    found = changed(csrc, file, old, new)
    assert found >= {"sm80", "sm90"} if counts else not found


def test_what_looks_like_a_comment_in_a_string_is_none(csrc: Path) -> None:
    file = INCLUDE / SM90.family / "producer.cuh"
    string = '#pragma once\nstatic_assert(true, "see // {} /* ");\n'
    assert changed(csrc, file, "#pragma once\n", string.format("here"))
    assert changed(csrc, file, string.format("here"), string.format("there")) == {"sm90"}


def test_header_that_is_newly_included_counts(csrc: Path) -> None:
    (csrc / INCLUDE / "more.cuh").write_text("#pragma once\nint a;\n")
    sm90 = INCLUDE / SM90.family / "producer.cuh"
    assert changed(csrc, INCLUDE / "more.cuh", "int a", "int b") == set()
    include = '#pragma once\n#include "flashsmith/more.cuh"'
    assert changed(csrc, sm90, "#pragma once", include) == {"sm90"}
    assert changed(csrc, INCLUDE / "more.cuh", "int b", "int c") == {"sm90"}


@pytest.fixture(autouse=True)
def _forget() -> object:
    yield
    kernel_source_hash.cache_clear()
