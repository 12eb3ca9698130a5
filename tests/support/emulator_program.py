"""Builds the program in tests/emulator/programs/cases with the emulator's sources, and runs it.

The program stops at undefined behaviour, so every test that runs it also checks for that.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support.paths import CSRC, PROGRAMS

CASES = PROGRAMS / "cases"
DEVICE_CASES = PROGRAMS / "device"  # these cases run on GPUs, too
FLAGS = (
    "-std=c++20",
    "-Og",  # by -O1, compilers take a third more time, which the short runs do not win back
    "-fsanitize=undefined",
    "-fno-sanitize-recover=all",
    "-ffp-contract=off",
    "-pthread",
    "-DFLASHSMITH_EMULATOR",
    f"-I{CSRC}",
    f"-I{CSRC / 'include'}",
    f"-I{PROGRAMS}",
)
# These headers are nearly all that a source reads, and are compiled once.
AHEAD = ("algorithm", "condition_variable", "deque", "functional", "map", "memory", "string")
SEEDS = range(10)

CXX = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")

Run = Callable[..., Any]


def build(folder: Path) -> None:
    """Compiles the test program from the emulator's sources and the cases."""
    sources = [*sorted((CSRC / "emulator").glob("*.cpp")), *sorted(CASES.glob("*.cpp"))]
    prelude = folder / "prelude.h"
    prelude.write_text("".join(f"#include <{name}>\n" for name in AHEAD))
    ahead = [str(CXX), *FLAGS, "-x", "c++-header", str(prelude), "-o", f"{prelude}.gch"]
    subprocess.run(ahead, check=True)

    def compile_one(source: Path) -> str:
        target = folder / f"{source.parent.parent.name}-{source.stem}.o"
        command = [str(CXX), *FLAGS, "-include", str(prelude), "-c", str(source)]
        subprocess.run([*command, "-o", str(target)], check=True)
        return str(target)

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, sources))
    subprocess.run([str(CXX), *FLAGS, *objects, "-o", str(folder / "cases")], check=True)


def run_case(program: Path, *arguments: str) -> Any:
    result = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, f"{arguments}: {result.returncode}\n{result.stderr}"
    return json.loads(result.stdout)
