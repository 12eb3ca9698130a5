"""A source tree whose kernels compile in milliseconds, for the tests of the build and the cache.

As a module, it builds kernels in a separate process: see ``main``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import flashsmith
from flashsmith.configs import (
    KernelId,
    Variant,
    get_kernel_progression_configs,
)
from flashsmith.jit import Module, SourceTree, Target, build_kernels, find_host, find_tvm_ffi
from flashsmith.jit.sources import HOST_SCRIPT, KERNEL_SCRIPT
from support.paths import TESTS

INSTANCES = [KernelId(config, Variant()) for config in get_kernel_progression_configs(False)]
EMULATOR = Target.emulator()

_HOST = """
extern "C" __attribute__((visibility("default"))) int host_value() { return 1; }
"""
_KERNEL = """#include "flashsmith/tiny.cuh"
namespace flashsmith {
#ifdef __CUDACC__
template <int n> __global__ void tiny_kernel(int *out) { *out = KERNEL_VALUE; }
template __global__ void tiny_kernel<0>(int *);
#else
template <int n> int tiny_kernel() { return KERNEL_VALUE; }
template int tiny_kernel<0>();
#endif
}
"""
# A kernel's module exports functions, the host library all that is not hidden.
_KERNEL_SCRIPT = "{ global: _ZN10flashsmith*_kernelI*; local: *; };\n"
_HOST_SCRIPT = "{ global: *; };\n"


def generate(instances: Sequence[KernelId]) -> dict[str, str]:
    """Generates files like codegen.generate, but each kernel is a function of KERNEL_VALUE."""
    return {f"{each.slug}.cu": _KERNEL for each in instances}


def make_csrc(csrc: Path) -> Path:
    for folder in ("include/flashsmith", "host", "emulator"):
        (csrc / folder).mkdir(parents=True)
    (csrc / "include/flashsmith/tiny.cuh").write_text("#pragma once\n#define KERNEL_VALUE 7\n")
    (csrc / "host/tiny.cpp").write_text(_HOST)
    (csrc / HOST_SCRIPT).write_text(_HOST_SCRIPT)
    (csrc / "emulator/memory.cpp").write_text("int emulated_memory() { return 0; }\n")
    (csrc / KERNEL_SCRIPT).write_text(_KERNEL_SCRIPT)
    return csrc


def make_compiler(path: Path, log: Path, before: str = "", version: str = "") -> Path:
    """Returns a C++ compiler that appends each call to ``log``; ``before`` is a shell command that
    runs before it compiles a file of the host or a kernel."""
    answer = f'case "$*" in --version) echo "{version}"; exit 0;; esac' if version else ""
    path.write_text(
        f"#!/bin/sh\n{answer}\n"
        f'case " $* " in *" -c "*|*" -shared "*) echo "$*" >> "{log}";; esac\n'
        f'case " $* " in *" -c "*|*".cu "*) {before or ":"};; esac\n'
        'exec c++ "$@"\n'
    )
    path.chmod(0o755)
    return path


def compiled(log: Path) -> list[str]:
    """Returns the names of files compiled so far, and 'link' for each link of a host library;
    sorted."""
    calls = log.read_text().splitlines() if log.exists() else []
    sources = [[word for word in call.split() if word.endswith((".cpp", ".cu"))] for call in calls]
    return sorted(Path(words[-1]).name if words else "link" for words in sources)


def is_running(pid: str) -> bool:
    """Returns whether the process exists and is not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def sum_of_kernels(modules: Iterable[Module], sources: SourceTree) -> int:
    """Returns the sum of what the built kernels compute, in another process."""
    script = """
import ctypes, json, sys
tvm_ffi, host, *kernels = json.loads(sys.argv[1])
ctypes.CDLL(tvm_ffi), ctypes.CDLL(host)
print(sum(ctypes.CDLL(path)[symbol]() for path, symbol in kernels))
"""
    host = find_host(sources=sources)
    assert host is not None
    kernels = [(str(module.path), module.functions["tiny_kernel"]) for module in modules]
    files = [str(find_tvm_ffi().library / "libtvm_ffi.so"), str(host.path), *kernels]
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(files)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
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

    modules = build_kernels(
        INSTANCES[first : first + count],
        EMULATOR,
        jobs=1 if kill_after else 2,
        progress=progress,
        sources=SourceTree(csrc, generate),
    )
    print(*(module.path for module in modules), sep="\n")


if __name__ == "__main__":
    main()
