#!/usr/bin/env python3
"""Writes tests/data/emulated_kernels.txt: the kernels that `make test` builds before its tests.

    rm -rf build/test-cache; python -m pytest -n auto -m "not gpu"
    python tools/build/emulated_kernels.py

Kernels that are built together keep all processors busy, so `make test` builds the listed ones at
once. This tool adds the emulated kernels in the tests' cache to the list. A kernel that is not in
the list is built when a test first needs it. Kernels with a caller's function (`score_mod`) are
left out, because only their test knows the function.
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
from flashsmith.jit import list_modules

LIST = _ROOT / "tests" / "data" / "emulated_kernels.txt"


def emulated() -> set[KernelId]:
    """Returns the emulated kernels in the cache, without those that call a caller's function."""
    names = {module.name for module in list_modules() if module.target.kind == "emulator"}
    found = map(parse_kernel_name_into_instance, names)
    return {instance for instance in found if not instance.variant.score}


def main() -> int:
    lines = LIST.read_text().splitlines() if LIST.exists() else []
    old = {parse_kernel_name_into_instance(name).name for name in lines}  # under today's names
    names = {instance.name for instance in emulated()} | old
    LIST.write_text("".join(f"{name}\n" for name in sorted(names)))
    print(f"{len(names)} kernels, {len(names) - len(old)} of them new, in {LIST}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
