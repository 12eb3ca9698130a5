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
    "-O1",
    "-fsanitize=undefined",
    "-fno-sanitize-recover=all",
    "-ffp-contract=off",
    "-pthread",
    "-DFLASHSMITH_EMULATOR",
    f"-I{CSRC}",
    f"-I{CSRC / 'include'}",
    f"-I{PROGRAMS}",
)
SEEDS = range(10)

CXX = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")

Run = Callable[..., Any]


def build(folder: Path) -> None:
    """Compiles the test program from the emulator's sources and the cases."""
    sources = [*sorted((CSRC / "emulator").glob("*.cpp")), *sorted(CASES.glob("*.cpp"))]

    def compile_one(source: Path) -> str:
        target = folder / f"{source.parent.parent.name}-{source.stem}.o"
        command = [str(CXX), *FLAGS, "-c", str(source), "-o", str(target)]
        subprocess.run(command, check=True)
        return str(target)

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, sources))
    subprocess.run([str(CXX), *FLAGS, *objects, "-o", str(folder / "cases")], check=True)


def run_case(program: Path, *arguments: str) -> Any:
    result = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, f"{arguments}: {result.returncode}\n{result.stderr}"
    return json.loads(result.stdout)
