"""Building a kernel in a process of its own, so that this one's interpreter is left to its program.

Planning and the lint of machine code are Python. In a thread they would hold the interpreter's lock
in turn with the program, whose calls are as short as a launch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Literal

from flashsmith.configs import KernelId, parse_kernel_name_into_instance
from flashsmith.errors import BuildError
from flashsmith.jit.attached import attached, is_python
from flashsmith.jit.library import build_library
from flashsmith.jit.target import Target

# The other process imports from where this one does.
_SCRIPT = """\
import json, sys
order = json.loads(sys.argv[1])
sys.path[:] = order.pop("path")
from flashsmith.jit.apart import build_ordered
build_ordered(**order)
"""


def build_apart(instance: KernelId, target: Target) -> None:
    """Has the cache hold a library of the kernel, which is built by one compiler at a time.

    It is built here where the program is not Python's own. The other process ends with the calling
    thread.

    Raises:
        BuildError: It was not built; says why.
    """
    if not is_python(sys.executable):
        build_library([instance], target, jobs=1)
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
    """Runs in the other process, and ends it with the reason if the build failed."""
    try:
        target = Target(kind, tuple(archs))
        build_library([parse_kernel_name_into_instance(name)], target, jobs=1)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
