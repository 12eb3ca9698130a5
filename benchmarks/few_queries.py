"""Checks and measures few queries over a long KV cache on the GPU, beside FlashAttention-3.

    python benchmarks/few_queries.py --out benchmarks/results/h200/2026-01-01

It writes one row for each shape, kind of KV cache and candidate: microseconds in turn with a
flushed L2, and the ratio of FlashAttention-3's time to ours. Candidates are the kernel that
``decode`` chooses, the heuristics' kernels of each decode family, others by ``--config``, and
FlashAttention-3 with lengths on the device. All results are checked against float32 before they are
timed. Writes few_queries.csv and few_queries_environment.json.
"""

from __future__ import annotations

import sys
from itertools import product

from decode import SHAPE, Shape
from flashsmith.configs import DType
from flashsmith.configs.sm80.decode_space import heuristic as sm80_heuristic
from flashsmith.configs.sm90.decode_space import heuristic as sm90_heuristic
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.program import Benchmark, run_program

SHAPES = (
    *(Shape(1, 8192, queries=queries) for queries in (1, 4, 8, 16, 32, 64, 128, 256, 512)),
    *(Shape(1, 32768, queries=queries) for queries in (1, 4, 8, 16, 32, 64, 128, 256, 512)),
    *(Shape(4, 8192, queries=queries) for queries in (4, 16, 32, 64, 128, 512)),
    Shape(1, 16384, heads=64, queries=16),
    Shape(1, 16384, heads=64, queries=64),
    Shape(2, 16384, heads=16, heads_kv=16, queries=16),
    Shape(2, 16384, heads=16, heads_kv=16, queries=64),
    Shape(1, 16384, queries=16, d_head=64),
    Shape(1, 16384, queries=64, d_head=64),
    Shape(1, 16384, heads=16, heads_kv=4, queries=16, d_head=256),
    Shape(1, 16384, heads=16, heads_kv=4, queries=64, d_head=256),
    Shape(1, 16384, heads=8, heads_kv=1, queries=32),
)


def case(shape: Shape, cache: str) -> Case:
    rows = shape.queries * (shape.heads // shape.heads_kv)
    workload = DecodeWorkload(DType.BF16, shape.d_head, rows)
    by_heuristic = (str(heuristic(workload)) for heuristic in (sm80_heuristic, sm90_heuristic))
    return shape.case(cache, ("flashsmith", *by_heuristic, "fa3"))


BENCHMARK = Benchmark(
    "few_queries",
    (*SHAPE, "in_turn_us", "in_turn_of_fa3", "error"),
    lambda: [case(*each) for each in product(SHAPES, ("entries", "pages of 64"))],
    repeats=30,
)

if __name__ == "__main__":
    sys.exit(run_program(BENCHMARK, __doc__))
