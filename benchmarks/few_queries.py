"""Checks and measures few queries over a long cache on the GPU, beside FlashAttention-3.

    python benchmarks/few_queries.py --out benchmarks/results/h200/2026-01-01

One row a shape, kind of cache and candidate: microseconds in turn with a flushed L2, and the ratio
of FlashAttention-3's time to it. Candidates are what ``decode`` takes, the rule's kernels of each
family of decode, other configurations by their names, and FlashAttention-3 with lengths on the
device. All results are checked against float32 before they are timed. Writes few_queries.csv.
"""

from __future__ import annotations

import argparse
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
from decode import OURS, Shape, check_and_time, paged, reference, tensors_of
from flashsmith import settings
from flashsmith.configs import DType, parse_kernel_name_into_config
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.lab.bench.rows_file import recorded, write_stamp

COLUMNS = (
    *("batch", "context", "heads", "heads_kv", "queries", "d_head", "cache", "candidate"),
    *("in_turn_us", "in_turn_of_fa3", "error"),
)
PEER = "fa3"
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
    workload = DecodeWorkload(DType.BF16, shape.d_head, rows)
    by_rule = [family.rule(workload) for family in DECODE.families]
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
        errors, times = check_and_time(f"{shape} {kind}", runs, expected, repeats)
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
    write_stamp(arguments.out / "few_queries.csv", **{PEER: build})
    torch.manual_seed(0)
    measured = (
        row for shape in SHAPES for row in rows_of(shape, arguments.repeats, arguments.config)
    )
    ratios = []
    for row in recorded(arguments.out / "few_queries.csv", COLUMNS, measured):
        print(*row.values(), flush=True)
        if row["candidate"] == OURS and row["in_turn_of_fa3"]:
            ratios.append(float(row["in_turn_of_fa3"]))
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"{OURS}: {mean:.3f}, least {min(ratios):.3f}, {len(ratios)} shapes")


if __name__ == "__main__":
    main()
