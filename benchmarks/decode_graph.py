"""Measures decode in a CUDA graph on the GPU, as a server replays it: call after call of a step.

    python benchmarks/decode_graph.py --out benchmarks/results/h200/2026-01-01

One row a shape and candidate: microseconds a call of a graph of 64, the median of ten replays. The
keys of small shapes stay in L2. Writes decode_graph.csv.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from decode_peers import PEERS, Cache, Run

import flashsmith
from decode import OURS, Shape, paged, tensors_of
from flashsmith import settings
from flashsmith.lab.bench.rows_file import recorded, write_stamp

COLUMNS = (
    *("batch", "context", "heads", "heads_kv", "queries", "d_head", "cache", "candidate"),
    "in_graph_us",
)
_CALLS, _REPLAYS, _PAGE_SIZE = 64, 10, 64
_PEERS = ("fa3", "flashinfer")

SHAPES = (
    *(Shape(1, context) for context in (128, 512, 2048)),
    *(Shape(16, context) for context in (128, 512, 2048)),
    Shape(256, 512),
    *(Shape(1, context, queries=16) for context in (2048, 8192)),
)


def in_graph_us(run: Run) -> float:
    """Of one call."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            run()
    times = []
    for _ in range(_REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / _CALLS)
    return statistics.median(times)


def rows_of(shape: Shape) -> Iterator[dict[str, Any]]:
    q, k, v = tensors_of(shape)
    lengths = torch.full((shape.batch,), shape.context, dtype=torch.int32, device=q.device)
    cache = paged(Cache(k, v, lengths), _PAGE_SIZE)
    run = partial(
        flashsmith.decode, None, q, cache.k, cache.v, cache_seqlens=lengths, block_table=cache.table
    )
    runs: dict[str, Run] = {OURS: run, f"{OURS} splits 1": partial(run, splits=1)}
    for name in _PEERS:
        peer = None if PEERS[name].why_missing() else PEERS[name].make(q, cache)
        if peer is not None:
            runs[name] = peer
    for name, each in runs.items():
        yield asdict(shape) | {
            "cache": f"pages of {_PAGE_SIZE}",
            "candidate": name,
            "in_graph_us": f"{in_graph_us(each):.2f}",
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ[settings.BACKGROUND_BUILD.name] = "off"  # what is measured is what was chosen
    write_stamp(arguments.out / "decode_graph.csv")
    torch.manual_seed(0)
    measured = (row for shape in SHAPES for row in rows_of(shape))
    for row in recorded(arguments.out / "decode_graph.csv", COLUMNS, measured):
        print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
