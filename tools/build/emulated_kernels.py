#!/usr/bin/env python3
"""Writes tests/data/emulated_kernels.txt: the kernels that `make test` builds before its tests.

    rm -rf build/test-cache; python -m pytest -n auto -m "not gpu"
    python tools/build/emulated_kernels.py

A library of one kernel takes twice the time that the kernel takes alone: its map is compiled, and
the host is linked. So `make test` builds those that tests would build one at a time together, by
the list that this makes of the libraries of one kernel in the tests' cache. A kernel that is not
in the list is built when a test first needs it; names that are there already stay.
Functions of a caller (`score_mod`) are known in their test alone, and are left out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import _environment

_environment.enter()

_ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("FLASHSMITH_CACHE_DIR", str(_ROOT / "build" / "test-cache"))

from flashsmith.configs import KernelId, parse_kernel_name_into_instance
from flashsmith.jit import list_libraries

LIST = _ROOT / "tests" / "data" / "emulated_kernels.txt"


def built_alone() -> set[KernelId]:
    """The kernels that have an emulated library of their own in the cache."""
    libraries = [each for each in list_libraries() if each.target.kind == "emulator"]
    names = [
        kernel["name"]
        for library in libraries
        if len(library.kernels) == 1
        for kernel in library.kernels.values()
    ]
    found = {parse_kernel_name_into_instance(name) for name in names}
    return {instance for instance in found if not instance.variant.score}


def main() -> int:
    lines = LIST.read_text().splitlines() if LIST.exists() else []
    old = {parse_kernel_name_into_instance(name).name for name in lines}  # by today's names
    names = {instance.name for instance in built_alone()} | old
    LIST.write_text("".join(f"{name}\n" for name in sorted(names)))
    print(f"{len(names)} kernels, {len(names) - len(old)} of them new, in {LIST}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
