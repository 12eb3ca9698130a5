"""Checks and measures few queries over a long cache on the GPU, beside FlashAttention-3.

    python benchmarks/few_queries.py --out benchmarks/results/h200/2026-01-01

One row a shape, kind of cache and candidate: microseconds in turn with a flushed L2, and the ratio
of FlashAttention-3's time to it. Candidates are what ``decode`` takes, the rule's kernels of each
family of decode, other configurations by their names, and FlashAttention-3 with lengths on the
device. All results are checked against float32 before they are timed. Writes few_queries.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from decode_peers import PEERS, Cache, Run

import flashsmith
from decode import Shape, error_of, paged, reference, tensors_of
from flashsmith import settings
from flashsmith.bench.stamp import environment_stamp
from flashsmith.bench.timer import time_interleaved
from flashsmith.configs import DType, parse_kernel_name_into_config
from flashsmith.configs.decode import DECODE_FAMILIES

COLUMNS = (
    *("batch", "context", "heads", "heads_kv", "queries", "d_head", "cache", "candidate"),
    *("in_turn_us", "in_turn_of_fa3", "error"),
)
OURS, PEER = "flashsmith", "fa3"
_TOLERANCE = 0.02  # of the largest element
_HEAD_START = 2e-4  # seconds
_PAGE_SIZE = 64

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


def candidates(
    shape: Shape, q: torch.Tensor, cache: Cache, others: Sequence[str]
) -> dict[str, Run]:
    run = partial(
        flashsmith.decode, q=q, k_cache=cache.k, v_cache=cache.v, cache_seqlens=cache.lengths,
        block_table=cache.table,
    )  # fmt: skip
    rows = shape.queries * (shape.heads // shape.heads_kv)
    runs: dict[str, Run] = {OURS: partial(run, None)}
    named = [parse_kernel_name_into_config(name) for name in others]
    by_rule = [
        family.rule(DType.BF16, shape.d_head, False, rows, False) for family in DECODE_FAMILIES
    ]
    for config in (*by_rule, *(config for config in named if config.d_head == shape.d_head)):
        runs[str(config)] = partial(run, config)
    peer = None if PEERS[PEER].why_missing() else PEERS[PEER].make(q, cache)
    return runs if peer is None else runs | {PEER: peer}


def rows_of(shape: Shape, repeats: int, others: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Checks, times and reports one shape."""
    q, k, v = tensors_of(shape)
    lengths = torch.full((shape.batch,), shape.context, dtype=torch.int32, device=q.device)
    entries = Cache(k, v, lengths)
    expected = reference(q, k, v, lengths)
    for kind, cache in (
        ("entries", entries),
        (f"pages of {_PAGE_SIZE}", paged(entries, _PAGE_SIZE)),
    ):
        runs = candidates(shape, q, cache, others)
        errors = {name: error_of(run(), expected) for name, run in runs.items()}
        if wrong := {name: error for name, error in errors.items() if not error < _TOLERANCE}:
            print(f"WRONG {shape} {kind}: {wrong}", flush=True)
        times = time_interleaved(runs, repeats=repeats, head_start=_HEAD_START)
        for name, timing in times.items():
            ratio = f"{times[PEER].ms / timing.ms:.3f}" if PEER in times else ""
            yield asdict(shape) | {
                "cache": kind,
                "candidate": name,
                "in_turn_us": f"{timing.ms * 1e3:.2f}",
                "in_turn_of_fa3": ratio,
                "error": f"{errors[name]:.2g}",
            }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--config", action="append", default=[], help="a configuration's name")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ[settings.BACKGROUND_BUILD.name] = "off"  # what is measured is what was chosen
    build = PEERS[PEER].why_missing() or PEERS[PEER].build()
    environment = json.dumps(environment_stamp() | {PEER: build}, indent=2)
    (arguments.out / "few_queries_environment.json").write_text(environment)
    torch.manual_seed(0)
    rows = []
    with (arguments.out / "few_queries.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for shape in SHAPES:
            for row in rows_of(shape, arguments.repeats, arguments.config):
                writer.writerow(row)
                rows.append(row)
                print(*row.values(), flush=True)
            file.flush()
    ours = [float(row["in_turn_of_fa3"] or 1) for row in rows if row["candidate"] == OURS]
    print(f"{OURS}: {statistics.geometric_mean(ours):.3f}, least {min(ours):.3f}")


if __name__ == "__main__":
    main()
