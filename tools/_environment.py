"""Lets the scripts of tools/ run in a shell that has not activated the checkout's .venv."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parent.parent
_PYTHON = _CHECKOUT / ".venv" / "bin" / "python"


def enter() -> None:
    """Starts the script again with .venv's Python if this Python has no flashsmith.

    If there is no .venv either, the script ends with a message that says what to do.
    """
    if importlib.util.find_spec("flashsmith") is not None:
        return
    in_venv = Path(sys.prefix).resolve() == _PYTHON.parent.parent.resolve()
    if _PYTHON.exists() and not in_venv:
        os.execv(_PYTHON, [str(_PYTHON), *sys.argv])
    sys.exit(
        f"error: flashsmith is not installed for {sys.executable}, nor in {_PYTHON.parent.parent}; "
        f"`make run` in {_CHECKOUT} sets it up there"
    )
