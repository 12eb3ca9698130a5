"""Copies the package, which tests change to see what it takes to extend it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import flashsmith
from flashsmith.jit import KernelCache
from flashsmith.jit.kernel_compilers import HostToolchain
from flashsmith.jit.toolchain import find_cxx
from flashsmith.jit.units import plan_host
from support.caches import kernel_free_cache

PACKAGE = Path(flashsmith.__file__).parent
INCLUDE = "csrc/include/flashsmith"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package, to be changed."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(PACKAGE, tmp_path / "src" / "flashsmith", ignore=ignored))


def run(copy: Path, program: str) -> str:
    """Returns the output of a program that imports the copy and compiles into a separate cache.

    Kernels that the change leaves as they were come from the session's cache.
    """
    cache = kernel_free_cache(copy.parent.parent / "cache")
    copy_objects(cache)
    environment = os.environ | {
        "PYTHONPATH": str(copy.parent),
        "FLASHSMITH_CACHE_DIR": str(cache.root),
        "FLASHSMITH_SHARED_CACHE": str(KernelCache().root),
        "FLASHSMITH_CXX": str(hasty_compiler(copy.parent.parent)),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def hasty_compiler(folder: Path) -> Path:
    """Returns the session's C++ compiler without optimisation, which takes a third less time for
    the many files that a change reaches.

    It answers as the session's own, so that the objects of unchanged files serve beside its own.
    """
    path = folder / "c++"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(str(find_cxx().path))} "$@" -O0\n')
    path.chmod(0o755)
    return path


def copy_objects(cache: KernelCache) -> None:
    """Copies the compiled files of the session's host library, so that a changed one compiles only
    what changed."""
    for unit in plan_host(HostToolchain.find(), PACKAGE / "csrc"):
        found = KernelCache().objects / unit.entry
        if found.exists():
            shutil.copytree(found, cache.objects / unit.entry)


def edit(file: Path, changes: Mapping[str, str]) -> None:
    text = file.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, (file, old)
        text = text.replace(old, new)
    file.write_text(text)
