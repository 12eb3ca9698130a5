"""How a command's work says how far it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from flashsmith.jit import Progress


@dataclass(frozen=True)
class Reporter:
    """What the laboratory is given to speak with; it prints nothing itself."""

    note: Callable[[str], None]  # a remark
    progress: Callable[[], AbstractContextManager[Progress]]  # of one piece of work
