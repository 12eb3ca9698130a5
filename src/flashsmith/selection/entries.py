"""The entries of a tuned table: kernels with their times, ranked for each workload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from flashsmith.configs.family import C, W


@dataclass(frozen=True)
class Measured(Generic[C]):
    """One configuration's time, in milliseconds, and speed.

    ``ms``, its percentiles and ``tflops`` are measured with candidates in turn
    (``time_interleaved``); ``ms_back_to_back`` is measured in runs without a pause.
    """

    config: C
    ms: float  # median; for decode the geometric mean over lengths
    ms_p20: float
    ms_p80: float
    tflops: float | None = None  # None where times are means over lengths
    ms_back_to_back: float | None = None  # None: it was not measured
    in_portfolio: bool = True  # False: a measurement alone, which is never chosen

    @property
    def cost(self) -> float:
        """The number that ranks kernels: the geometric mean of the times in both regimes."""
        return math.sqrt(self.ms * (self.ms_back_to_back or self.ms))

    def described(self) -> str:
        steady = self.ms_back_to_back
        return f"{self.ms:g} ms" + (f", back to back {steady:g} ms" if steady else "")


@dataclass(frozen=True)
class Entry(Generic[W, C]):
    """The fastest configurations of one workload; they serve all problems of its bucket."""

    workload: W
    tried: int  # configurations, with the excluded ones
    excluded: Mapping[str, str]  # kernel -> what is wrong with it
    heuristic_ratio: float | None  # cost of the heuristic's choice / cost of the best
    ranked: tuple[Measured[C], ...]  # fastest first

    @property
    def choices(self) -> tuple[Measured[C], ...]:
        """The configurations in the portfolio, fastest first."""
        return tuple(row for row in self.ranked if row.in_portfolio)

    def loss(self, row: Measured[C]) -> float:
        """Returns how much slower than the best a row is, as a share of the best's cost."""
        return row.cost / self.ranked[0].cost - 1
