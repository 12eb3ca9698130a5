"""Checks of times on a GPU that other processes use, too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

_ATTEMPTS = 20


def once_undisturbed(check: Callable[[], None]) -> None:
    """Makes a check until it holds: the workers of a run share the GPU, which gives each its turn,
    so that a time has others' turns in it. A check that is wrong without them never holds."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(AssertionError):
            check()
            return
    check()
