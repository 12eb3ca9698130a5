"""Builds a kernel in a separate process, so that the build does not hold the program's GIL.

Planning and the lint of machine code are Python. A thread would take turns with the program at the
interpreter's lock, and the program's calls are as short as a launch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Literal

from flashsmith.configs import KernelId, parse_kernel_name_into_instance
from flashsmith.errors import BuildError
from flashsmith.jit.attached import attached, is_python
from flashsmith.jit.build import build_kernels
from flashsmith.jit.target import Target

# The other process imports from the same folders as this one.
_SCRIPT = """\
import json, sys
order = json.loads(sys.argv[1])
sys.path[:] = order.pop("path")
from flashsmith.jit.apart import build_ordered
build_ordered(**order)
"""


def build_apart(instance: KernelId, target: Target) -> None:
    """Builds the kernel into the cache, with one compiler at a time.

    If sys.executable is not Python, the build runs in this process. The other process ends with the
    calling thread.

    Raises:
        BuildError: The build failed; the message says why.
    """
    if not is_python(sys.executable):
        build_kernels([instance], target, jobs=1)
        return
    order = {
        "name": instance.name,
        "kind": target.kind,
        "archs": target.archs,
        "path": [str(folder) for folder in sys.path],
    }
    command = attached([sys.executable, "-c", _SCRIPT, json.dumps(order)])
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        raise BuildError(done.stderr.strip() or f"the builder ended with {done.returncode}")


def build_ordered(name: str, kind: Literal["cuda", "emulator"], archs: list[str]) -> None:
    """Builds in the other process, and ends it with the reason if the build fails."""
    try:
        target = Target(kind, tuple(archs))
        build_kernels([parse_kernel_name_into_instance(name)], target, jobs=1)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
