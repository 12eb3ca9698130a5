"""The launch cache of this process repeats calls in C++ without Python's cold path.

The host library creates it (csrc/host/launch_cache). Python tells it about each call that
took the cold path; it forgets them when tables or settings change, as Python's choices do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NO_THREAD = -1  # not the number of any thread
UNKNOWN, MADE = 0, 1  # results of the cache's functions (csrc/host/launch_cache/launch_cache.h)


def _knows_nothing(*_: Any) -> int:
    return UNKNOWN


def _do_nothing(*_: Any) -> None:
    pass


class LaunchCache:
    """The cache's functions; before the host library is loaded, they know no call."""

    __slots__ = (
        *("attend", "decode", "backward", "forget", "this_thread", "drop_thread"),
        *("remember_attend", "remember_decode", "remember_backward"),
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

    def connect(self, module: Any) -> None:
        """Takes the functions of the host library."""
        for name, function in module.launch_cache().items():
            setattr(self, name, function)


launch_cache = LaunchCache()
