"""Programs that end when this process does, however it ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

# Linux sends the signal when the thread that started the program ends, with its process or before
# (prctl(2), PR_SET_PDEATHSIG = 1); the program inherits that from this script, which becomes it.
# Not by subprocess's preexec_fn: that forks all of a process that has threads, and maybe much
# memory. The parent may have ended before the signal was asked for.
_SCRIPT = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, {signal})
if os.getppid() == {parent}:
    os.execv(sys.argv[1], sys.argv[1:])
"""


def attached(command: Sequence[str]) -> list[str]:
    """The command, as one that gets SIGTERM when the calling thread ends.

    Its first word is the path of an executable.
    """
    interpreter = _interpreter()
    if interpreter is None:
        return [*command]
    script = _SCRIPT.format(signal=int(signal.SIGTERM), parent=os.getpid())
    return [interpreter, "-I", "-S", "-c", script, *command]


def _interpreter() -> str | None:
    """Returns a Python: sys.executable is another program where that has Python inside."""
    candidates = (sys.executable, shutil.which("python3"))
    return next((path for path in candidates if is_python(path)), None)


def is_python(path: str | None) -> bool:
    """Returns whether a program is an interpreter, which runs scripts."""
    return path is not None and re.fullmatch(r"python[\d.]*", Path(path).name) is not None
