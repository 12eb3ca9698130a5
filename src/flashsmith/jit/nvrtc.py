"""Finds NVRTC, the CUDA compiler that is a library: torch's CUDA builds install it."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flashsmith import settings
from flashsmith.errors import ToolchainError
from flashsmith.jit.attached import find_python
from flashsmith.jit.toolchain import OLDEST_CUDA

INSTALL_NVRTC = (
    "`pip install nvidia-cuda-nvrtc` (a CUDA build of torch brings it), or point FLASHSMITH_NVRTC "
    "at a libnvrtc.so"
)
_PROGRAM = Path(__file__).with_name("nvrtc_program.py")


@dataclass(frozen=True)
class Nvrtc:
    """An NVRTC that was found and answers."""

    library: Path
    version: str  # '13.0.88'
    found_by: str  # 'FLASHSMITH_NVRTC' or 'cuda-pathfinder'
    identity: str  # for cache keys, wherever it is installed
    archs: tuple[int, ...]  # it compiles for: 90 is sm_90

    def command(self, options: Sequence[str]) -> list[str]:
        """Returns the command of a compiler: the source, -o and the output follow."""
        return [*_program(self.library), *options]

    def require_arch(self, arch: str) -> None:
        """Raises ToolchainError for an architecture that is newer than the library."""
        if int(arch.removeprefix("sm_").rstrip("af")) not in self.archs:
            known = ", ".join(f"sm_{each}" for each in self.archs)
            raise ToolchainError(
                f"NVRTC {self.version} ({self.library}) does not compile for {arch}, but for "
                f"{known}; a newer one does: {INSTALL_NVRTC}"
            )


def find_nvrtc() -> Nvrtc:
    """Returns the NVRTC that FLASHSMITH_NVRTC names, else the first that cuda-pathfinder finds: in
    NVIDIA's wheels, in conda's environment, on the system.

    Raises:
        ToolchainError: There is none, or it does not answer, or is too old.
    """
    chosen = settings.NVRTC.get()
    if chosen is not None:
        return _probe(chosen, "FLASHSMITH_NVRTC", _stamp(chosen))
    path = _find_library()
    return _probe(path, "cuda-pathfinder", _stamp(path))


def _program(library: Path) -> list[str]:
    python = find_python() or sys.executable
    return [python, "-I", "-S", str(_PROGRAM), str(library)]


def _find_library() -> Path:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib  # type: ignore[import-untyped]

        found = load_nvidia_dynamic_lib("nvrtc").abs_path
    except Exception as error:  # of several types, among them RuntimeError
        raise ToolchainError(f"no NVRTC was found: {error}; {INSTALL_NVRTC}") from error
    if found is None:
        raise ToolchainError(f"the place of NVRTC is not known; {INSTALL_NVRTC}")
    return Path(found)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise ToolchainError(f"NVRTC {path} cannot be read: {error}; {INSTALL_NVRTC}") from error
    return status.st_mtime_ns, status.st_size


@functools.lru_cache
def _probe(path: Path, found_by: str, stamp: tuple[int, int]) -> Nvrtc:
    """Asks the library in another process: one that is no NVRTC, or damaged, may end it."""
    done = subprocess.run(_program(path), capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        why = (
            (done.stdout + done.stderr).strip().splitlines() or [f"it ended with {done.returncode}"]
        )[-1]
        raise ToolchainError(f"NVRTC {path} does not answer: {why}; {INSTALL_NVRTC}")
    (major, minor), archs, ptx = json.loads(done.stdout)
    if (major, minor) < OLDEST_CUDA:
        oldest = ".".join(map(str, OLDEST_CUDA))
        raise ToolchainError(
            f"NVRTC {path} is of CUDA {major}.{minor}; {oldest} or newer is needed; {INSTALL_NVRTC}"
        )
    # Two builds of a version may differ. Only the comment in PTX tells them apart.
    build = re.search(r"Compiler Build ID: (\S+)\W+Cuda compilation tools, .*, V([\d.]+)", ptx)
    if build is None:
        raise ToolchainError(f"NVRTC {path} does not tell its build in PTX; {INSTALL_NVRTC}")
    return Nvrtc(path, build[2], found_by, f"NVRTC {build[2]}, {build[1]}", tuple(archs))
