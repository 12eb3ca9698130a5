"""Measures the progression of the sm90 family on a Hopper GPU, one idea a step.

    python benchmarks/sm90_forward.py --out benchmarks/results/h200/2026-01-01

Writes sm90_progression.csv: each configuration at BF16, d_head 128, full and causal, interleaved
with the L2 cache flushed (TFLOP/s, share of cuBLAS's 8192^3 product in the same run), and then
running without a pause for a second (TFLOP/s, SM clock, power, joules for each TFLOP); and
sm90_resources.csv, what ptxas says of each kernel.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console

from flashsmith.configs import (
    VARIANTS,
    DType,
    KernelId,
    Variant,
    Workload,
    get_sm90_kernel_progression_configs,
)
from flashsmith.jit import build_library
from flashsmith.lab.bench.candidates import Candidate, Checker, name_of
from flashsmith.lab.bench.ceilings import measure_ceilings
from flashsmith.lab.bench.monitor import GpuMonitor
from flashsmith.lab.bench.peers import find_peers
from flashsmith.lab.bench.rows_file import write_stamp
from flashsmith.lab.bench.timer import time_interleaved
from flashsmith.problem import Problem
from flashsmith.runtime import load_library
from flashsmith.runtime.device import target_of

console = Console(width=160)
BATCH, HEADS, SEQ_LEN, D_HEAD = 4, 16, 4096, 128
SUSTAINED_SECONDS = 1.0
PEERS = ["fa2", "cudnn", "fa3", "fa4"]  # those that are there

Row = dict[str, object]


def write(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def build() -> list[Row]:
    """Builds and loads the progression, full and causal; returns what ptxas says of each."""
    instances = [
        KernelId(config, variant)
        for config in get_sm90_kernel_progression_configs()
        for variant in VARIANTS
    ]
    library = build_library(instances, target_of(torch.device("cuda")))
    load_library(library)
    return [
        {"kernel": kernel["name"]} | {k: v for k, v in figures.items() if k != "function"}
        for kernel in library.kernels.values()
        for figures in kernel["resources"]
    ]


def sustained(run: Callable[[], object], workload: Workload) -> Row:
    """The same kernel again and again: what the power limit leaves."""
    with GpuMonitor() as monitor:
        runs, start = 0, time.monotonic()
        while time.monotonic() - start < SUSTAINED_SECONDS:
            for _ in range(20):
                run()
            torch.cuda.synchronize()
            runs += 20
        elapsed = time.monotonic() - start
        sample = monitor.since(start + SUSTAINED_SECONDS / 2)
    tflops = workload.tflops(1e3 * elapsed / runs)
    row: Row = {
        "sustained_tflops": f"{tflops:.1f}",
        "sustained_sm_clock_mhz": sample.sm_clock_mhz,
        "sustained_power_w": sample.power_w,
    }
    if sample.power_w is not None:
        row["joules_per_tflop"] = f"{sample.power_w / tflops:.3f}"
    return row


def measure(variant: Variant, cublas_tflops: float, repeats: int) -> list[Row]:
    problem = Problem.square(DType.BF16, D_HEAD, BATCH, HEADS, SEQ_LEN)
    workload = Workload(problem, variant)
    checker = Checker(workload, "cuda")
    progression = get_sm90_kernel_progression_configs()
    candidates: list[Candidate] = [*find_peers(PEERS), *progression]
    runs = {}
    for checked in map(checker.check, candidates):
        if checked.run is None:
            console.print(f"left out: {name_of(checked.candidate)}: {checked.reason}")
        else:
            runs[name_of(checked.candidate)] = checked.run
    timings = time_interleaved(runs, repeats=repeats)
    rows: list[Row] = []
    for name, timing in timings.items():
        tflops = workload.tflops(timing.ms)
        row: Row = {
            "kernel": name,
            **workload.as_row(),
            "ms": f"{timing.ms:.5f}",
            "ms_p20": f"{timing.low:.5f}",
            "ms_p80": f"{timing.high:.5f}",
            "tflops": f"{tflops:.1f}",
            "percent_of_cublas": f"{100 * tflops / cublas_tflops:.1f}",
        }
        rows.append(row | sustained(runs[name], workload))
        console.print(rows[-1])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    if torch.cuda.get_device_capability() != (9, 0):
        console.print("no GPU of compute capability 9.0: the sm90 family is left out")
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    write(args.out / "sm90_resources.csv", build())
    cublas = measure_ceilings(DType.BF16).matmul_tflops
    console.print(f"cuBLAS 8192^3 BF16: {cublas:.1f} TFLOP/s")
    rows = [row for variant in VARIANTS for row in measure(variant, cublas, args.repeats)]
    write_stamp(args.out / "sm90_progression.csv")
    write(args.out / "sm90_progression.csv", [{"cublas_tflops": f"{cublas:.1f}"} | r for r in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
