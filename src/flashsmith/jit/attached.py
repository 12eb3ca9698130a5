"""Child programs that end when this process ends, however it ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

# Linux sends the signal when the thread that started the program ends, with its process or before
# (prctl(2), PR_SET_PDEATHSIG = 1); the setting survives execv. subprocess's preexec_fn would fork a
# process with threads, and maybe much memory, instead. The parent may have ended before prctl, so
# its id is checked afterwards.
_SCRIPT = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, {signal})
if os.getppid() == {parent}:
    os.execv(sys.argv[1], sys.argv[1:])
"""


def attached(command: Sequence[str]) -> list[str]:
    """Returns the command as one that gets SIGTERM when the calling thread ends.

    The command's first word is the path of an executable.
    """
    interpreter = find_python()
    if interpreter is None:
        return [*command]
    script = _SCRIPT.format(signal=int(signal.SIGTERM), parent=os.getpid())
    return [interpreter, "-I", "-S", "-c", script, *command]


def find_python() -> str | None:
    """Returns a Python interpreter: sys.executable is another program if that embeds Python."""
    candidates = (sys.executable, shutil.which("python3"))
    return next((path for path in candidates if is_python(path)), None)


def is_python(path: str | None) -> bool:
    """Returns whether a program is a Python interpreter, which runs scripts."""
    return path is not None and re.fullmatch(r"python[\d.]*", Path(path).name) is not None
