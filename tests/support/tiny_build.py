"""A source tree whose kernels compile in milliseconds, for the tests of the build and the cache.

As a module, it builds a library in a separate process: see ``main``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import flashsmith
from flashsmith.configs import (
    KernelId,
    Variant,
    get_kernel_progression_configs,
)
from flashsmith.jit import Library, SourceTree, Target, build_library, find_tvm_ffi
from support.paths import TESTS

INSTANCES = [KernelId(config, Variant()) for config in get_kernel_progression_configs(False)]
EMULATOR = Target.emulator()

_REGISTRY = """
#include "flash_kernels.cuh"
extern "C" __attribute__((visibility("default"))) int sum_of_kernels() { return SUM; }
"""


def generate(instances: Sequence[KernelId]) -> dict[str, str]:
    """Generates files like codegen.generate, but each kernel is a function of KERNEL_VALUE."""
    slugs = [instance.slug for instance in instances]
    header = "".join(f"int {slug}();\n" for slug in slugs)
    header += f"#define SUM ({' + '.join(f'{slug}()' for slug in slugs)})\n"
    text = '#include "flashsmith/tiny.cuh"\nint {}() {{ return KERNEL_VALUE; }}\n'
    return {"flash_kernels.cuh": header} | {f"{slug}.cu": text.format(slug) for slug in slugs}


def make_csrc(csrc: Path) -> Path:
    for folder in ("include/flashsmith", "host", "emulator"):
        (csrc / folder).mkdir(parents=True)
    (csrc / "include/flashsmith/tiny.cuh").write_text("#pragma once\n#define KERNEL_VALUE 7\n")
    (csrc / "host/registry.cpp").write_text(_REGISTRY)
    (csrc / "emulator/memory.cpp").write_text("int emulated_memory() { return 0; }\n")
    return csrc


def make_compiler(path: Path, log: Path, before: str = "", version: str = "") -> Path:
    """Returns a C++ compiler that appends each call to ``log``; ``before`` is a shell command that
    runs before it compiles."""
    answer = f'case "$*" in --version) echo "{version}"; exit 0;; esac' if version else ""
    path.write_text(
        f"#!/bin/sh\n{answer}\n"
        f'case " $* " in *" -c "*|*" -shared "*) echo "$*" >> "{log}";; esac\n'
        f'case " $* " in *" -c "*) {before or ":"};; esac\n'
        'exec c++ "$@"\n'
    )
    path.chmod(0o755)
    return path


def compiled(log: Path) -> list[str]:
    """Returns the names of files compiled so far, and 'link' for each link; sorted."""
    calls = log.read_text().splitlines() if log.exists() else []
    names = []
    for call in calls:
        words = call.split()
        is_compile = "-c" in words
        names.append(Path(words[words.index("-c") + 1]).name if is_compile else "link")
    return sorted(names)


def is_running(pid: str) -> bool:
    """Returns whether the process exists and is not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def sum_of_kernels(library: Library) -> int:
    """Returns the sum that the built library computes, in another process."""
    script = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1]);"
        "print(ctypes.CDLL(sys.argv[2]).sum_of_kernels())"
    )
    tvm_ffi = find_tvm_ffi().library / "libtvm_ffi.so"
    done = subprocess.run(
        [sys.executable, "-c", script, tvm_ffi, library.path],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def start(csrc: Path, count: int, first: int = 0, kill_after: int = 0) -> subprocess.Popen[str]:
    """Starts ``main`` in another process."""
    folders = [TESTS, Path(flashsmith.__file__).parent.parent]
    return subprocess.Popen(
        [sys.executable, "-m", "support.tiny_build", csrc, str(first), str(count), str(kill_after)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def main() -> None:
    """Builds INSTANCES[first : first + count]; dies by SIGKILL once ``kill_after`` are compiled."""
    csrc, first, count, kill_after = Path(sys.argv[1]), *map(int, sys.argv[2:])

    def progress(done: int, total: int, name: str) -> None:
        if kill_after and done == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    library = build_library(
        INSTANCES[first : first + count],
        EMULATOR,
        jobs=1 if kill_after else 2,
        progress=progress,
        sources=SourceTree(csrc, generate),
    )
    print(library.path)


if __name__ == "__main__":
    main()
