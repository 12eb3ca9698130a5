"""Runs a function in a forked child, which may hang."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable

_PATIENCE = 30.0  # seconds


def in_child(function: Callable[[], object]) -> str:
    """Returns the child's exception, or that it hung; empty if nothing went wrong."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            function()
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + _PATIENCE
    try:
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "it hung"
            time.sleep(0.01)
        with os.fdopen(reading, closefd=False) as said:
            return said.read()
    finally:
        os.close(reading)
