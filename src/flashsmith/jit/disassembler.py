"""Finds and runs cuobjdump, which prints the machine code in objects and libraries."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from flashsmith import settings
from flashsmith.errors import ToolchainError
from flashsmith.jit import toolchain

INSTALL = (
    "install the CUDA toolkit, or `pip install 'flashsmith[report]'` "
    "(nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm)"
)


def find_cuobjdump() -> Path:
    """Returns the first cuobjdump that has nvdisasm, which it needs. It looks beside the nvcc that
    compiles, on PATH, in CUDA_HOME, in /usr/local/cuda, and in NVIDIA's PyPI packages.

    Raises:
        ToolchainError: There is none.
    """
    for folder in _tool_folders():
        tool = folder / "cuobjdump"
        if os.access(tool, os.X_OK) and shutil.which("nvdisasm", path=search_path(tool)):
            return tool
    raise ToolchainError(f"no cuobjdump with nvdisasm was found; {INSTALL}")


def search_path(tool: Path) -> str:
    """Returns the PATH on which cuobjdump finds nvdisasm: cuobjdump's folder first."""
    return os.pathsep.join([str(tool.parent), *os.get_exec_path()])


def disassemble(path: Path, arch: str) -> str:
    """Returns the machine code for ``arch`` in an object or a library, as text.

    Raises:
        ToolchainError: cuobjdump is missing or fails.
    """
    tool = find_cuobjdump()
    command = [str(tool), "-sass", "-arch", arch, str(path)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        env=os.environ | {"PATH": search_path(tool)},
    )
    if done.returncode != 0:
        raise ToolchainError(f"`{' '.join(command)}` failed: {done.stderr.strip()}; {INSTALL}")
    return done.stdout


def _tool_folders() -> Iterator[Path]:
    with suppress(ToolchainError):
        yield toolchain.find_cuda_toolkit().root / "bin"
    if on_path := shutil.which("cuobjdump"):
        yield Path(on_path).parent
    if home := settings.CUDA_HOME.get():
        yield home / "bin"
    yield toolchain.SYSTEM_CUDA / "bin"
    for root in toolchain.pypi_toolkits():
        yield root / "bin"
