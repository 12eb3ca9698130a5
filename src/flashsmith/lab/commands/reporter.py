"""The interface through which a command's work reports its progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from flashsmith.jit import Progress


@dataclass(frozen=True)
class Reporter:
    """The laboratory's output: it prints nothing itself, and calls these."""

    note: Callable[[str], None]  # a remark
    progress: Callable[[], AbstractContextManager[Progress]]  # of one piece of work
