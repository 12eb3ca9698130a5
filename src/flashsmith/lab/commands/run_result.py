"""What `flashsmith run` says of one kernel."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Result:
    """One kernel's run. Counts are the emulator's, times a GPU's; a faulty kernel has neither.

    Of a backward: of its worst gradient, and beside the backward of FA2.
    """

    kernel: str
    error: float = math.inf
    tolerance: float = math.nan
    ok: bool = False
    worst: str = ""  # where the error is, or the fault
    counts: dict[str, int] = field(default_factory=dict)
    ms: float | None = None
    tflops: float | None = None
    fa2_percent: float | None = None
    operation: str = "forward"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
