"""Checks and measures decode on the GPU, beside its peers.

    python benchmarks/decode.py --out benchmarks/results/h200/2026-01-01

It writes one row for each shape, kind of KV cache and candidate: microseconds in turn with a
flushed L2, GB/s of keys and values (each counted once, in the bytes of the cache), and the ratio of
the best peer's time with the same cache to ours. A cache has slots, or pages in random order, and
is 16-bit or FP8. Our candidates are the heuristic's choice with a stream-K schedule, the same with
a fixed number of splits (batch invariance), for slots the kernel that ``attention`` takes, and for
FP8 per-token scales. All results are checked against float32 before they are timed. Geometric means
of the ratios come last. Writes decode.csv and decode_environment.json.

``--cases table`` measures a table of contexts, batches, heads and d_heads; without it, a few of
these. ``--config`` names configurations that are measured beside the heuristic's choice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from flashsmith.lab.bench.cases import Case, workload_of
from flashsmith.lab.bench.operations import BENCHES
from flashsmith.lab.bench.operations.decode_inputs import cache_names
from flashsmith.lab.bench.program import Benchmark, run_program

KEYS = 1 << 18  # of all requests together, in shapes with many
MAX_ELEMENTS = KEYS * 8 * 128  # of K
SHORT = 2048  # context
CANDIDATES = (*BENCHES["decode"].ours, *BENCHES["decode"].peers)
SHAPE = ("batch", "context", "heads", "heads_kv", "queries", "d_head", "cache", "candidate")


class Shape(NamedTuple):
    """A batch of requests of equal length."""

    batch: int
    context: int
    heads: int = 32
    heads_kv: int = 8
    queries: int = 1
    d_head: int = 128

    def case(self, cache: str, candidates: Sequence[str], group: str = "") -> Case:
        heads, lengths = (self.heads, self.heads_kv), (self.queries, self.context)
        workload = workload_of(self.d_head, self.batch, heads, lengths)
        return Case("decode", workload, (*candidates,), group=group, cache=cache)


SHAPES = (
    *(Shape(KEYS // context, context) for context in (1024, 8192, 65536)),
    *(Shape(batch, context) for batch in (1, 8) for context in (1024, 8192, 65536)),
    Shape(64, 1024),
    Shape(32, 4096, heads=64),
    Shape(16, 4096, queries=4),
    *(Shape(4, 8192, queries=queries) for queries in (1, 4, 16, 64)),
    Shape(1, 32768, queries=16),
    Shape(4, 32768, queries=128),
    Shape(1, 16384, heads=8, heads_kv=1),
    Shape(32, 4096, d_head=64),
    Shape(32, 4096, heads=16, heads_kv=4, d_head=256),
)


def cases(shapes: Sequence[Shape] = SHAPES, group: str = "") -> list[Case]:
    return [
        shape.case(cache, CANDIDATES, group)
        for shape in shapes
        for cache in cache_names(shape.context, shape.batch)
    ]


def table() -> Iterator[Shape]:
    """Yields contexts from 128 to 128k, batches from 1 to 256, and other heads and d_heads."""
    contexts, batches = (128, 512, 2048, 8192, 32768, 131072), (1, 16, 256)
    kinds = [
        *((*heads, 1, 128) for heads in ((32, 8), (64, 8), (32, 32), (8, 1))),
        *((32, 8, 1, d_head) for d_head in (64, 256)),
    ]
    for (heads, heads_kv, queries, d_head), context, batch in product(kinds, contexts, batches):
        if batch * context * heads_kv * d_head <= MAX_ELEMENTS:
            yield Shape(batch, context, heads, heads_kv, queries, d_head)


def kinds(case: Case) -> list[str]:
    is_short = case.workload.problem.seq_len_k <= SHORT
    return [f"{case.cache}, all", *[f"{case.cache}, up to {SHORT}"] * is_short]


BENCHMARK = Benchmark(
    "decode",
    (*SHAPE, "in_turn_us", "gb_per_s", "in_turn_of_best_peer", "error"),
    cases,
    more=lambda: cases([*table()], "table"),
    kinds=kinds,
    repeats=30,
)

if __name__ == "__main__":
    sys.exit(run_program(BENCHMARK, __doc__))
