"""Measures decode in a CUDA graph on the GPU, as a server replays it: call after call of a step.

    python benchmarks/decode_graph.py --out benchmarks/results/h200/2026-01-01

It writes one row for each shape and candidate: microseconds a call in a graph of 64 calls, the
median of ten replays. The calls take turns with up to 16 caches, as layers do, so that L2 has few
of the keys. Writes decode_graph.csv and decode_graph_environment.json.
"""

from __future__ import annotations

import sys

from decode import SHAPE, Shape
from flashsmith.lab.bench.program import Benchmark, run_program

CANDIDATES = ("flashsmith", "flashsmith splits 1", "fa3", "flashinfer")
SHAPES = (
    *(Shape(1, context) for context in (128, 512, 2048)),
    *(Shape(16, context) for context in (128, 512, 2048)),
    Shape(256, 512),
    *(Shape(1, context, queries=16) for context in (2048, 8192)),
)
BENCHMARK = Benchmark(
    "decode_graph",
    (*SHAPE, "in_graph_us"),
    lambda: [shape.case("pages of 64", CANDIDATES) for shape in SHAPES],
)

if __name__ == "__main__":
    sys.exit(run_program(BENCHMARK, __doc__))
