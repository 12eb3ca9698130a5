"""What a tuned table holds: kernels with their times, ranked for each workload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from flashsmith.configs.family import C, W


@dataclass(frozen=True)
class Measured(Generic[C]):
    """One configuration's time, in milliseconds, and speed.

    ``ms``, its percentiles and ``tflops`` are of runs in turn, as ``time_interleaved`` has
    them; ``ms_back_to_back`` is of runs without a pause.
    """

    config: C
    ms: float  # median; of decode the geometric mean over lengths
    ms_p20: float
    ms_p80: float
    tflops: float | None = None  # None where times are means over lengths
    ms_back_to_back: float | None = None  # None where it was not tuned for
    in_portfolio: bool = True  # else it is a measurement alone, and serves nothing

    @property
    def cost(self) -> float:
        """What tables are ranked by: the geometric mean of the times in both regimes."""
        return math.sqrt(self.ms * (self.ms_back_to_back or self.ms))

    def described(self) -> str:
        steady = self.ms_back_to_back
        return f"{self.ms:g} ms" + (f", back to back {steady:g} ms" if steady else "")


@dataclass(frozen=True)
class Entry(Generic[W, C]):
    """The fastest configurations of one workload; they serve all problems of its bucket."""

    workload: W
    tried: int  # configurations, with the excluded
    excluded: Mapping[str, str]  # kernel -> what is wrong with it
    heuristic_ratio: float | None  # cost of the heuristic's choice / that of the best
    ranked: tuple[Measured[C], ...]  # fastest first

    @property
    def choices(self) -> tuple[Measured[C], ...]:
        """What of it may serve, fastest first."""
        return tuple(row for row in self.ranked if row.in_portfolio)

    def loss(self, row: Measured[C]) -> float:
        """Returns how much slower than the best a row is, as a share of the best's cost."""
        return row.cost / self.ranked[0].cost - 1
