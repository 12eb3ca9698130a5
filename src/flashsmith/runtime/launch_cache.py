"""The launch cache of this process: how calls that are like earlier ones are made, in C++.

A library that is loaded makes it (csrc/host/launch_cache). It knows what Python told it of calls
that were made the slow way, and drops it with tables and settings, as Python's own choices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NO_THREAD = -1  # no thread has this number
UNKNOWN, MADE = 0, 1  # what its functions answer (csrc/host/launch_cache/launch_cache.h)


def _knows_nothing(*_: Any) -> int:
    return UNKNOWN


def _do_nothing(*_: Any) -> None:
    pass


class LaunchCache:
    """Functions of the cache; before a library is loaded, of one that knows nothing."""

    __slots__ = (
        *("attend", "decode", "backward", "forget", "this_thread", "drop_thread"),
        *("remember_attend", "remember_decode", "remember_backward", "is_connected"),
    )

    attend: Callable[..., int]
    decode: Callable[..., int]
    backward: Callable[..., int]
    remember_attend: Callable[..., None]
    remember_decode: Callable[..., None]
    remember_backward: Callable[..., None]
    forget: Callable[[], None]
    this_thread: Callable[[], int]
    drop_thread: Callable[[int], None]

    def __init__(self) -> None:
        self.attend = self.decode = self.backward = _knows_nothing
        self.remember_attend = self.remember_decode = self.remember_backward = _do_nothing
        self.forget = self.drop_thread = _do_nothing
        self.this_thread = lambda: NO_THREAD
        self.is_connected = False

    def connect(self, module: Any) -> None:
        """Takes the functions of the first library that is loaded."""
        if self.is_connected:
            return
        for name, function in module.launch_cache().items():
            setattr(self, name, function)
        self.is_connected = True


launch_cache = LaunchCache()
