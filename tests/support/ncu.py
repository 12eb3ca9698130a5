"""A recorded output of ncu on an H200, and the kernels that it is of."""

from __future__ import annotations

from flashsmith.configs import (
    DType,
)
from flashsmith.lab.bench.ncu import ProfiledLaunch, parse_raw_csv
from support.paths import DATA, ROOT
from support.workloads import square

TOOLS = ROOT / "tools" / "benchmark"
# Recorded on an H200 by ncu 2025.3.1; some of its columns and rows were kept.
RECORDED = DATA / "ncu" / "h200_raw.csv"
WORKLOAD = square(DType.FP16, 128, "full", 4, 16, 4096)
BEST = "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"
BUFFERED = "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
HELD = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"


def recorded() -> list[ProfiledLaunch]:
    return parse_raw_csv(RECORDED.read_text())
