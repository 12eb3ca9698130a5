"""The result of one kernel in `flashsmith run`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Result:
    """One kernel's run. Counts are the emulator's, times a GPU's; a faulty kernel has neither.

    A backward's error is its worst gradient's, and its time is compared with FA2's backward.
    """

    kernel: str
    error: float = math.inf
    tolerance: float = math.nan
    ok: bool = False
    worst: str = ""  # the element with the largest error, or the emulator's fault
    counts: dict[str, int] = field(default_factory=dict)
    ms: float | None = None
    tflops: float | None = None
    fa2_percent: float | None = None
    operation: str = "forward"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
