"""Choices of kernels: made once for all calls with one key, and remembered."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from flashsmith.runtime.launch_cache import launch_cache
from flashsmith.selection.choose import forget_with_calls

forget_with_calls(lambda: launch_cache.forget())  # looked up late: a library provides it

MAX_CHOICES = 4096

Choice = TypeVar("Choice")


class Choices(dict[Hashable, Choice]):
    """Choices by key. They are bounded, and dropped when tables or settings change."""

    def __init__(self) -> None:
        super().__init__()
        forget_with_calls(self.clear)

    def keep(self, key: Hashable, choice: Choice) -> Choice:
        """Returns the choice that is kept for the key, which may come from another thread."""
        if len(self) >= MAX_CHOICES:
            self.clear()
        return self.setdefault(key, choice)
