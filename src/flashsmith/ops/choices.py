"""What is found once for all calls that are alike, and remembered for those that follow."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from flashsmith.runtime.launch_cache import launch_cache
from flashsmith.selection.choose import forget_with_calls

forget_with_calls(lambda: launch_cache.forget())  # looked up then: a library brings it

MAX_CHOICES = 4096

Choice = TypeVar("Choice")


class Choices(dict[Hashable, Choice]):
    """By what calls have in common. Bounded; empty again when tables or settings change."""

    def __init__(self) -> None:
        super().__init__()
        forget_with_calls(self.clear)

    def keep(self, key: Hashable, choice: Choice) -> Choice:
        """Returns the choice that is kept for the key, which may be another thread's."""
        if len(self) >= MAX_CHOICES:
            self.clear()
        return self.setdefault(key, choice)
