"""Checks and measures decode on the GPU, beside torch's FlashAttention-2 and cuDNN.

    python benchmarks/decode.py --out benchmarks/results/h200/2026-01-01

One row a shape and candidate: microseconds in turn with a flushed L2, GB/s of keys and values (each
once), and the ratio of the best peer's time to ours. Ours are what is chosen by rule with the work
shared out evenly, the same with a number of splits that gives batch invariance, the same in pages
of random order, the same with keys and values of 8 bits, as which GB/s count them, and what
``attention`` takes for these queries and keys. Results are
checked against the first peer's before they are timed. The peers are torch's
scaled_dot_product_attention, for which all requests have all rows.
Then the host's cost of a call. Writes decode.csv and decode_environment.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import flashsmith
from flashsmith.bench.stamp import environment_stamp
from flashsmith.bench.timer import time_interleaved

COLUMNS = (
    *("batch", "context", "heads", "heads_kv", "queries", "d_head", "candidate"),
    *("in_turn_us", "gb_per_s", "in_turn_of_best_peer", "error"),
)
OURS = "flashsmith"
PEERS = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
_TOLERANCE = 0.02  # of the largest element: all candidates round alike
_ELEMENT_BYTES = 2
_FP8, _OF_FP8 = torch.float8_e4m3fn, f"{OURS} fp8"
_KEYS = 1 << 18  # of all requests, where there are many
_HOST_CALLS = 200

Run = Callable[[], Any]


@dataclass(frozen=True)
class Shape:
    """Requests that all have the same length."""

    batch: int
    context: int
    heads: int = 32
    heads_kv: int = 8
    queries: int = 1
    d_head: int = 128

    @property
    def bytes(self) -> int:
        """Of keys and values."""
        rows = self.batch * self.context * self.heads_kv
        return 2 * rows * self.d_head * _ELEMENT_BYTES


SHAPES = (
    *(Shape(_KEYS // context, context) for context in (1024, 8192, 65536)),
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


def tensors_of(shape: Shape) -> tuple[torch.Tensor, ...]:
    """q, k and v of (batch, rows, heads, d_head); of keys and values 8 bits hold all."""
    sizes = ((shape.queries, shape.heads), *[(shape.context, shape.heads_kv)] * 2)
    q, k, v = (
        torch.randn(shape.batch, rows, heads, shape.d_head, device="cuda") for rows, heads in sizes
    )
    return q.bfloat16(), k.to(_FP8).bfloat16(), v.to(_FP8).bfloat16()


def ours(shape: Shape, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Run]:
    """As entries, by given numbers of splits, by ``attention``, of 8 bits, and in pages."""
    lengths = torch.full((shape.batch,), shape.context, dtype=torch.int32, device="cuda")
    entries = partial(flashsmith.decode, None, q, k, v, cache_seqlens=lengths)
    runs: dict[str, Run] = {OURS: entries}
    for splits in (1, 8):
        runs[f"{OURS} splits {splits}"] = partial(entries, splits=splits)
    runs[f"{OURS} attention"] = partial(flashsmith.attention, q, k, v)
    small = [t.to(_FP8) for t in (k, v)]
    runs[_OF_FP8] = partial(flashsmith.decode, None, q, *small, cache_seqlens=lengths)
    for page_size in (16, 64):
        pages = shape.context // page_size
        table = torch.randperm(shape.batch * pages, device="cuda").int().reshape(shape.batch, pages)
        cache = [torch.empty_like(t).reshape(-1, page_size, *t.shape[2:]) for t in (k, v)]
        for paged, t in zip(cache, (k, v), strict=True):
            paged[table.flatten().long()] = t.reshape(paged.shape)
        runs[f"{OURS} pages of {page_size}"] = partial(
            flashsmith.decode, None, q, *cache, cache_seqlens=lengths, block_table=table
        )
    return runs


def peers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Run]:
    transposed = [t.transpose(1, 2) for t in (q, k, v)]

    def run(backend: SDPBackend) -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(*transposed, enable_gqa=True).transpose(1, 2)

    return {name: partial(run, backend) for name, backend in PEERS.items()}


def errors_of(runs: Mapping[str, Run]) -> dict[str, float]:
    """How far each of ours is off the first peer, of its largest element."""
    expected = next(run for name, run in runs.items() if name in PEERS)()
    largest = expected.abs().max()
    return {
        name: ((run() - expected).abs().max() / largest).item()
        for name, run in runs.items()
        if name not in PEERS
    }


def rows_of(shape: Shape, repeats: int) -> Iterator[dict[str, Any]]:
    """Checks, times and reports one shape."""
    q, k, v = tensors_of(shape)
    runs = ours(shape, q, k, v) | peers(q, k, v)
    errors = errors_of(runs)
    if wrong := {name: error for name, error in errors.items() if not error < _TOLERANCE}:
        print(f"WRONG {shape}: {wrong}", flush=True)
    times = time_interleaved(runs, repeats=repeats)
    best = min(times[name].ms for name in PEERS)
    for name, timing in times.items():
        is_peer = name in PEERS
        n_bytes = shape.bytes / (_ELEMENT_BYTES if name == _OF_FP8 else 1)
        yield asdict(shape) | {
            "candidate": name,
            "in_turn_us": f"{timing.ms * 1e3:.2f}",
            "gb_per_s": f"{n_bytes / timing.ms / 1e6:.0f}",
            "in_turn_of_best_peer": "" if is_peer else f"{best / timing.ms:.3f}",
            "error": "" if is_peer else f"{errors[name]:.2g}",
        }


def host_us() -> float:
    """Microseconds until a call is queued, of problems that are over sooner."""
    shape = Shape(1, 64)
    run = ours(shape, *tensors_of(shape))[OURS]
    for _ in range(_HOST_CALLS):
        run()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(_HOST_CALLS):
        run()
    taken = time.perf_counter() - begin
    torch.cuda.synchronize()
    return 1e6 * taken / _HOST_CALLS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--repeats", type=int, default=30)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    environment = json.dumps(environment_stamp(), indent=2)
    (arguments.out / "decode_environment.json").write_text(environment)
    torch.manual_seed(0)
    with (arguments.out / "decode.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for shape in SHAPES:
            for row in rows_of(shape, arguments.repeats):
                writer.writerow(row)
                print(*row.values(), flush=True)
            file.flush()
    print(f"host: {host_us():.1f} us a call")


if __name__ == "__main__":
    main()
