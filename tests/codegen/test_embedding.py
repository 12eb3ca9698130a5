"""A C++ program of a user looks kernels up in the generated map and links them itself."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from flashsmith import codegen
from flashsmith.configs import KernelConfig, KernelId
from flashsmith.jit import KernelCache, build_host
from flashsmith.jit.kernel_compilers import HostToolchain
from flashsmith.jit.units import plan_host
from support.emulator_program import CXX
from support.paths import CSRC, CSRC_INCLUDE
from support.sm80_kernels import BASE

FLAGS = ("-std=c++20", "-O0", "-w", "-DFLASHSMITH_EMULATOR", f"-I{CSRC_INCLUDE}", f"-I{CSRC}")
HELD = [KernelId(replace(BASE, d_head=64, B_r=64, B_c=B_c)) for B_c in (32, 64)]
LACKING = replace(HELD[0].config, B_c=128)

# Prints a line for each configuration: whether the map has it, with that configuration's kernel.
PROGRAM = """\
#include "flash_kernels.cuh"

#include <cstdio>

using namespace flashsmith;

void find(const FlashForwardKernelConfig &config, forward_kernel_fn kernel) {{
  const auto entry = forward_kernels.find(config);
  if (entry == forward_kernels.end()) {{
    std::puts("not in the map");
  }} else {{
    std::puts(entry->second == kernel ? "found" : "another kernel");
  }}
}}

int main() {{
{calls}
}}
"""


def compile_all(sources: Sequence[Path], folder: Path) -> list[str]:
    def compile_one(source: Path) -> str:
        target = folder / f"{source.stem}.o"
        subprocess.run(
            [str(CXX), *FLAGS, "-x", "c++", "-c", str(source), "-o", str(target)], check=True
        )
        return str(target)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(compile_one, sources))


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Returns the object files of the kernels and of the emulator that runs them. Those of the
    emulator are in the session's cache, if the session built its host library."""
    folder = tmp_path_factory.mktemp("objects")
    kernels = codegen.write(HELD, folder)[1:]
    build_host()
    units = plan_host(HostToolchain.find(), CSRC)
    emulator = [unit for unit in units if unit.label.startswith("emulator/")]
    assert {unit.label for unit in emulator} >= {"emulator/launch.cpp", "emulator/block.cpp"}
    built = {unit.label: KernelCache().objects / unit.entry / unit.artifact for unit in emulator}
    missing = [CSRC / label for label, path in built.items() if not path.exists()]
    found = [str(path) for path in built.values() if path.exists()]
    return [*compile_all([*kernels, *missing], folder), *found]


def found_with(texts: Mapping[str, str], objects: Sequence[str], folder: Path) -> list[str]:
    """Returns what a program with this map finds: the two kernels that exist, then a third."""

    def call(config: KernelConfig, kernel: str) -> str:
        return f"  find({config.to_cpp_struct()}, {kernel});"

    calls = [call(each.config, f"kernels::{each.slug}()") for each in HELD]
    main = PROGRAM.format(calls="\n".join([*calls, call(LACKING, "nullptr")]))
    (folder / codegen.MAP_HEADER).write_text(texts[codegen.MAP_HEADER])
    (folder / "main.cpp").write_text(main)
    program = folder / "program"
    linked = [*compile_all([folder / "main.cpp"], folder), *objects]
    subprocess.run([str(CXX), *linked, "-pthread", "-o", str(program)], check=True)
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_program_finds_the_kernels_of_the_map_alone(objects: list[str], tmp_path: Path) -> None:
    found = found_with(codegen.generate(HELD), objects, tmp_path)
    assert found == ["found", "found", "not in the map"]


def test_a_program_does_not_find_what_was_removed_from_the_map(
    objects: list[str], tmp_path: Path
) -> None:
    texts = codegen.generate(HELD)
    entry = rf"    \{{[^\n]*\n     kernels::{HELD[0].slug}\(\)\}},\n"
    texts[codegen.MAP_HEADER], removed = re.subn(entry, "", texts[codegen.MAP_HEADER])
    assert removed == 1
    assert found_with(texts, objects, tmp_path) == ["not in the map", "found", "not in the map"]
