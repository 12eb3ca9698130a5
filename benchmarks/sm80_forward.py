"""Checks every sm80 kernel on the GPU, then measures them against FlashAttention-2.

    python benchmarks/sm80_forward.py --out benchmarks/results/h200/2026-01-01

Writes, for all kernels, correctness.csv (full and causal, on strided tensors) and resources.csv
(registers, spills); progression.csv, one idea a step; and tuning.csv, all tuning configurations
over the lengths; with a stamp beside each. FlashAttention-2 is torch's scaled_dot_product_attention
with the flash backend, in the same run, interleaved.
"""

from __future__ import annotations

import sys
from itertools import product

from flashsmith.configs import (
    VARIANTS,
    DType,
    Workload,
    get_autotuning_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
)
from flashsmith.configs.workload import K_COLUMNS, ROW_COLUMNS
from flashsmith.lab.bench.cases import Case, workload_of
from flashsmith.lab.bench.grid import make_grid
from flashsmith.lab.bench.program import Benchmark, run_program

SEQ_LENS = (512, 1024, 2048, 4096, 8192, 16384)
TIMES = ("kernel", *ROW_COLUMNS, *K_COLUMNS, "ms", "ms_p20", "ms_p80", "tflops", "percent_of_fa2")


def correctness() -> list[Case]:
    kernels = dict.fromkeys(
        [*get_kernels_to_build(), *get_autotuning_kernel_configs(d_heads=(64,))]
    )
    kinds = dict.fromkeys((config.dtype, config.d_head) for config in kernels)
    return [
        Case(
            "forward",
            workload_of(d_head, 2, 3, 1024, variant, dtype),
            tuple(str(config) for config in kernels if (config.dtype, config.d_head) == kind),
            strided=True,
        )
        for kind, variant in product(kinds, VARIANTS)
        for dtype, d_head in [kind]
    ]


def progression() -> list[Case]:
    names = map(str, get_kernel_progression_configs(False))
    return [Case("forward", workload_of(128, 4, 16, 4096, dtype=DType.FP16), (*names, "fa2"))]


def tuning() -> list[Case]:
    def case(workload: Workload) -> Case:
        d_heads = (workload.problem.d_head,)
        names = map(str, get_autotuning_kernel_configs([DType.FP16], d_heads=d_heads))
        return Case("forward", workload, (*names, "fa2"))

    masks = ("full", "causal")
    grid = make_grid([DType.FP16], (128, 64), masks, SEQ_LENS, tokens=16384, hidden=2048)
    return [case(workload) for workload in grid]


BENCHMARKS = (
    Benchmark(
        "correctness",
        ("config", "mask", "error", "tolerance", "ok"),
        correctness,
        resources="resources.csv",
    ),
    Benchmark("progression", TIMES, progression, repeats=30),
    Benchmark("tuning", TIMES, tuning, repeats=30),
)

if __name__ == "__main__":
    sys.exit(max(run_program(benchmark, __doc__) for benchmark in BENCHMARKS))
