"""The shapes of a kernel's tiles, which StaticForwardKernelConfig derives at compile time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flashsmith.configs import parse_kernel_name_into_config
from flashsmith.jit import PACKAGE_SOURCES, find_cxx

CSRC = PACKAGE_SOURCES.csrc
KERNELS = {  # with NAMES, computed by hand
    "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles": (16, 1, 8, 16, 8, 4),
    "(BF16, 64, 128, 32, 4): async+eager+swizzled+load_2_2_2_tiles": (32, 2, 4, 8, 4, 2),
}
NAMES = ("rows_per_warp", "m_tiles", "S_n_tiles", "O_n_tiles", "QK_fragments", "PV_fragments")


def compile_text(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    source = folder / "shapes.cpp"
    source.write_text(
        '#include <type_traits>\n#include "flashsmith/sm80/traits.cuh"\n'
        f"using namespace flashsmith::sm80;\nusing namespace flashsmith;\n{text}\n"
    )
    flags = ["-std=c++20", "-fsyntax-only", "-DFLASHSMITH_EMULATOR"]
    command = [find_cxx().path, *flags, f"-I{CSRC / 'include'}", f"-I{CSRC}", source]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_kernel_reads_its_shapes_from_N(tmp_path: Path) -> None:
    lines = []
    for i, (name, values) in enumerate(KERNELS.items()):
        literal = parse_kernel_name_into_config(name).to_cpp_struct()
        lines += [
            f"using K{i} = StaticForwardKernelConfig<{literal}>;",
            f"static_assert(std::is_same_v<K{i}::N, ForwardKernelTileShapes<{literal}>>);",
        ]
        lines += [
            f"static_assert(K{i}::N::{shape} == {value} && &K{i}::N::{shape} == &K{i}::{shape});"
            for shape, value in zip(NAMES, values, strict=True)
        ]
    done = compile_text(tmp_path, "\n".join(lines))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("80, 64, 64, 4", "d_head is 64, 96, 128, 192 or 256"),
        ("128, 32, 64, 4", "B_r is 64 or 128"),
        ("128, 64, 48, 4", "B_c is 32, 64 or 128"),
        ("128, 64, 64, 2", "n_warps is 4 or 8"),
        ("128, 64, 64, 8", "each warp works on at least 16 rows of Q"),
    ],
)
def test_illegal_shapes_stop_the_compiler(values: str, sentence: str, tmp_path: Path) -> None:
    literal = f"FlashForwardKernelConfig{{ScalarType::Half, {values}}}"
    done = compile_text(tmp_path, f"template struct ForwardKernelTileShapes<{literal}>;")
    assert done.returncode != 0
    assert sentence in done.stderr
