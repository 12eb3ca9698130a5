"""Checks and measures the backward on the GPU, beside its peers: the whole operator, every launch.

    python benchmarks/backward.py --out benchmarks/results/h200/2026-01-01

It writes one row for each shape and candidate: milliseconds in turn with a flushed L2 and back to
back, TFLOP/s (five products of the scores that the mask leaves), the ratio of the best peer's time
to ours, and the peak memory of a call beside its arguments.
Our candidates are the heuristic's choice, its choice for deterministic results, and the two schemes
of the sm80 family, whose peer is FlashAttention-2. Gradients are checked against float32 before
they are timed. FlashAttention-3 is upstream's C++ build, if it is installed or named by
FLASHSMITH_FA3_LIBRARY; cuDNN and FlashAttention-2 are torch's, through autograd.
Writes backward.csv and backward_environment.json.
"""

from __future__ import annotations

import sys
from itertools import product

from flashsmith.configs import CAUSAL, FULL
from flashsmith.lab.bench.cases import Case, workload_of
from flashsmith.lab.bench.program import Benchmark, run_program

TOKENS, HIDDEN = 16384, 2048  # of each shape: batch x length, heads x d_head
CANDIDATES = (
    *("flashsmith", "flashsmith deterministic", "flashsmith sm80", "flashsmith sm80 sums"),
    *("fa3", "fa3_deterministic", "cudnn", "fa2"),
)


def cases() -> list[Case]:
    lengths = (512, 1024, 2048, 4096, 8192, 16384)
    return [
        Case(
            "backward",
            workload_of(d_head, TOKENS // length, HIDDEN // d_head, length, variant),
            CANDIDATES,
        )
        for d_head, variant, length in product((64, 128, 256), (FULL, CAUSAL), lengths)
    ]


BENCHMARK = Benchmark(
    "backward",
    (
        *("d_head", "mask", "batch", "heads", "heads_kv", "seq_len", "candidate"),
        *("in_turn_ms", "in_turn_tflops", "in_turn_of_best_peer"),
        *("back_to_back_ms", "back_to_back_tflops", "back_to_back_of_best_peer"),
        *("peak_mib", "error"),
    ),
    cases,
)

if __name__ == "__main__":
    sys.exit(run_program(BENCHMARK, __doc__))
