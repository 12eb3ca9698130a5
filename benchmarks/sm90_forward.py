"""Measures the progression of the sm90 family on a Hopper GPU, one idea a step.

    python benchmarks/sm90_forward.py --out benchmarks/results/h200/2026-01-01

Writes sm90_progression.csv: each configuration at BF16, d_head 128, full and causal, interleaved
with the L2 cache flushed (TFLOP/s, share of cuBLAS's 8192^3 product in the same run), and then
running without a pause for a second (TFLOP/s, SM clock, power, joules for each TFLOP); and
sm90_resources.csv, ptxas' report of each kernel.
"""

from __future__ import annotations

import sys

from flashsmith.configs import VARIANTS, get_sm90_kernel_progression_configs
from flashsmith.configs.workload import K_COLUMNS, ROW_COLUMNS
from flashsmith.lab.bench.cases import Case, workload_of
from flashsmith.lab.bench.program import Benchmark, run_program

CANDIDATES = ("fa2", "cudnn", "fa3", "fa4", *map(str, get_sm90_kernel_progression_configs()))
BENCHMARK = Benchmark(
    "sm90_progression",
    (
        *("cublas_tflops", "kernel", *ROW_COLUMNS, *K_COLUMNS),
        *("ms", "ms_p20", "ms_p80", "tflops", "percent_of_cublas"),
        *("sustained_tflops", "sustained_sm_clock_mhz", "sustained_power_w", "joules_per_tflop"),
    ),
    lambda: [Case("forward", workload_of(128, 4, 16, 4096, v), CANDIDATES) for v in VARIANTS],
    needs=(9, 0),
    resources="sm90_resources.csv",
    repeats=30,
)

if __name__ == "__main__":
    sys.exit(run_program(BENCHMARK, __doc__))
