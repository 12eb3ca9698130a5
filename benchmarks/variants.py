"""Checks and measures masks, scores, lengths and small grids on the GPU, beside the peers.

    python benchmarks/variants.py --out benchmarks/results/h200/2026-01-01

It writes one row for each case and candidate: milliseconds in turn with a flushed L2, and the ratio
of the best peer's time to ours. Each result is checked against float32 before it is timed.
FlashAttention-3 is upstream's C++ build, if it is installed or named by FLASHSMITH_FA3_LIBRARY;
cuDNN and FlashAttention-2 are torch's; FlexAttention is compiled by torch.
Writes variants.csv and variants_environment.json.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product

from flashsmith.configs import CAUSAL, FULL
from flashsmith.lab.bench.cases import SKEWED, Case, workload_of
from flashsmith.lab.bench.operations.scores import SCORES
from flashsmith.lab.bench.program import Benchmark, run_program

PEERS = ("fa3", "cudnn", "fa2")
OURS, SM80 = ("flashsmith", *PEERS), ("flashsmith sm80", "fa2")
SHAPES = {  # batch, heads, heads_kv and the lengths of q and k
    "small": [
        *((1, 16, 16, n, n) for n in (256, 512, 1024, 2048, 4096)),
        *((2, 16, 16, 1024, 1024), (4, 16, 16, 512, 512)),
    ],
    "odd": [(16, 16, 16, 777, 777), (8, 16, 16, 1536, 1536), (4, 16, 16, 3000, 3000)],
    "gqa": [(4, 32, 8, 4096, 4096), (4, 32, 4, 4096, 4096), (1, 32, 8, 8192, 8192)],
    "unequal": [(1, 32, 8, 1024, 8192), (1, 32, 8, 512, 8192)],
}


def dense() -> Iterator[Case]:
    """Yields small grids, odd lengths, shared heads, and unequal lengths of q and k."""
    for d, (group, shapes) in product((64, 128, 256), SHAPES.items()):
        for (batch, heads, heads_kv, n_q, n_k), mask in product(shapes, (FULL, CAUSAL)):
            workload = workload_of(d, batch, (heads, heads_kv), (n_q, n_k), mask)
            name = f"d{d} {batch}x{heads}/{heads_kv}x{n_q}/{n_k} {mask.name}"
            yield Case("forward", workload, OURS, name, group)


def window() -> Iterator[Case]:
    """Yields a sliding window of 1024 keys at length 16k, and the same shape without a window."""
    n, keys = 16384, 1024
    for d, heads in ((64, 32), (128, 16), (256, 8)):
        workload = workload_of(d, 1, heads, n, CAUSAL)
        name = f"d{d} 1x{heads}x{n}"
        yield Case("forward", workload, OURS, f"{name} window {keys}", "window", window=keys)
        yield Case("forward", workload, OURS, f"{name} causal", "window")


def packed() -> Iterator[Case]:
    """Yields packed sequences of equal length, and of a skewed mix of lengths."""
    heads_of = ((64, 32, 8), (128, 16, 16), (128, 32, 8), (256, 8, 8))
    mixes = {"skewed": SKEWED, "equal": (1024,) * 16}
    for (d, heads, heads_kv), (mix, lengths) in product(heads_of, mixes.items()):
        for mask in (FULL, CAUSAL):
            workload = workload_of(d, len(lengths), (heads, heads_kv), max(lengths), mask)
            name = f"d{d} {heads}/{heads_kv} {mix} {mask.name}"
            yield Case("forward", workload, ("flashsmith", "fa3"), name, "packed", lengths)


def scores() -> Iterator[Case]:
    """Yields changes of scores, forward and gradients alone, beside the plain kernel."""
    for operation, group in (("forward", "score"), ("backward", "score_gradients")):
        for d, score in product((64, 128), SCORES):
            name = f"d{d} 4x16x4096 causal {score}"
            peers = ("fa3", "flex") if group == "score" else ("flex",)
            workload = workload_of(d, 4, 16, 4096, CAUSAL)
            yield Case(operation, workload, ("flashsmith", *peers), name, group, score=score)


def sm80() -> Iterator[Case]:
    """Yields the sm80 heuristic beside FlashAttention-2: equal heads, shared heads, packed."""
    for (d, heads), mask in product(((64, 32), (128, 16), (256, 8)), (FULL, CAUSAL)):
        for heads_kv, n in ((heads, 512), (heads, 2048), (heads, 8192), (heads // 4, 4096)):
            workload = workload_of(d, 16384 // n, (heads, heads_kv), n, mask)
            name = f"d{d} {16384 // n}x{heads}/{heads_kv}x{n} {mask.name}"
            yield Case("forward", workload, SM80, name, "sm80")
        workload = workload_of(d, len(SKEWED), heads, max(SKEWED), mask)
        name = f"d{d} {heads}/{heads} skewed {mask.name}"
        yield Case("forward", workload, SM80, name, "sm80", SKEWED)


BENCHMARK = Benchmark(
    "variants",
    ("group", "case", "candidate", "ms", "flop", "tflops", "of_best_peer", "error"),
    lambda: [*dense(), *window(), *packed(), *scores(), *sm80()],
)

if __name__ == "__main__":
    sys.exit(run_program(BENCHMARK, __doc__))
