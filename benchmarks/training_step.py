"""Checks and measures a training step's attention on the GPU: packed, causal, with shared heads.

    python benchmarks/training_step.py --out benchmarks/results/h200/2026-01-01

It writes one row for each case, pass and candidate: milliseconds in turn with a flushed L2 and back
to back, and the ratio of the best peer's time to ours. Results are checked against float32 before
they are timed. FlashAttention-3 is upstream's C++ build, if it is installed or named by
FLASHSMITH_FA3_LIBRARY; FlashAttention-2 is torch's; both are called without autograd.
Writes training_step.csv and training_step_environment.json.
"""

from __future__ import annotations

import sys
from itertools import product

from flashsmith.configs import CAUSAL
from flashsmith.lab.bench.cases import SKEWED, Case, workload_of
from flashsmith.lab.bench.program import Benchmark, run_program

LENGTHS = {
    "one of 8192": (8192,),
    "two of 8192": (8192,) * 2,
    "sixteen of 512": (512,) * 16,
    "skewed": SKEWED,
}
HEADS = {"8B": (32, 8), "70B": (64, 8)}  # of Llama 3
PASSES = {
    "forward": ("flashsmith", "fa3", "fa2"),
    "training step": (
        *("flashsmith", "flashsmith deterministic", "fa3", "fa3_deterministic", "fa2"),
    ),
}


def cases() -> list[Case]:
    return [
        Case(
            operation,
            workload_of(128, len(lengths), heads, max(lengths), CAUSAL),
            candidates,
            name=f"Llama {model}, {mix}",
            group=f"{model} {mix}",
            lengths=lengths,
        )
        for (model, heads), (mix, lengths), (operation, candidates) in product(
            HEADS.items(), LENGTHS.items(), PASSES.items()
        )
    ]


BENCHMARK = Benchmark(
    "training_step",
    (
        *("case", "d_head", "heads", "heads_kv", "tokens", "pass", "candidate"),
        *("in_turn_ms", "in_turn_of_best_peer", "back_to_back_ms", "back_to_back_of_best_peer"),
        *("tflops", "error"),
    ),
    cases,
    kinds=lambda case: (case.operation,),
)

if __name__ == "__main__":
    sys.exit(run_program(BENCHMARK, __doc__))
