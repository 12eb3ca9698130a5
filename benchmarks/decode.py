"""Checks and measures decode on the GPU, beside its peers.

    python benchmarks/decode.py --out benchmarks/results/h200/2026-01-01

One row a shape, kind of cache and candidate: microseconds in turn with a flushed L2, GB/s of keys
and values (each once, as many bytes as the cache has), and the ratio of the best peer's time with
the same cache to ours. A cache has entries, or pages in random order, of 16 or of 8 bits. Ours are
what is chosen by rule with the work shared out evenly, the same with a number of splits that gives
batch invariance, of entries what ``attention`` takes, and of 8 bits with a scale for each row.
Peers are those of decode_peers.py that are installed. All results are checked against float32
before they are timed. At the end: geometric means of the ratios, and the host's cost of a call.
Writes decode.csv and decode_environment.json.

``--table`` measures the table of contexts, batches, heads and head dimensions; without it a few of
these. ``--config`` names configurations that are measured beside what is chosen.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from decode_peers import PEERS, Cache, Run

import flashsmith
from flashsmith import settings
from flashsmith.configs import FlashDecodeKernelConfig, parse_kernel_name_into_config
from flashsmith.lab.bench.rows_file import recorded, write_stamp
from flashsmith.lab.bench.timer import Timing, time_interleaved
from flashsmith.reference import reference_attention

COLUMNS = (
    *("batch", "context", "heads", "heads_kv", "queries", "d_head", "cache", "candidate"),
    *("in_turn_us", "gb_per_s", "in_turn_of_best_peer", "error"),
)
OURS = "flashsmith"
_OUR_SPLITS = {OURS: 0, f"{OURS} splits 1": 1, f"{OURS} splits 8": 8}
_TOLERANCE = 0.02  # of the largest element: all candidates round alike
_BY_ATTENTION, _OF_TOKENS = f"{OURS} attention", f"{OURS} scales of tokens"
_FP8 = torch.float8_e4m3fn
_PAGE_SIZES, _FP8_PAGE_SIZE = (16, 64, 256), 64
_KEYS = 1 << 18  # of all requests, where there are many
_MOST_ELEMENTS = _KEYS * 8 * 128  # of K
_HEAD_START = 2e-4  # seconds: what the slowest peer's host takes
_HOST_CALLS = 200
_SHORT = 2048  # context


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
    def elements(self) -> int:
        """Of K."""
        return self.batch * self.context * self.heads_kv * self.d_head


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


def table() -> Iterator[Shape]:
    """Contexts from 128 to 128k, batches from 1 to 256, and other heads and head dimensions."""
    contexts, batches = (128, 512, 2048, 8192, 32768, 131072), (1, 16, 256)
    kinds = [
        *((*heads, 128) for heads in ((32, 8), (64, 8), (32, 32), (8, 1))),
        *((32, 8, d_head) for d_head in (64, 256)),
    ]
    for (heads, heads_kv, d_head), context, batch in itertools.product(kinds, contexts, batches):
        shape = Shape(batch, context, heads, heads_kv, d_head=d_head)
        if shape.elements <= _MOST_ELEMENTS:
            yield shape


def tensors_of(shape: Shape, device: str = "cuda") -> tuple[torch.Tensor, ...]:
    """q, k and v of (batch, rows, heads, d_head); of keys and values 8 bits hold all."""
    sizes = ((shape.queries, shape.heads), *[(shape.context, shape.heads_kv)] * 2)
    q, k, v = (
        torch.randn(shape.batch, rows, heads, shape.d_head, device=device, dtype=torch.bfloat16)
        for rows, heads in sizes
    )
    return q, k.to(_FP8).bfloat16(), v.to(_FP8).bfloat16()


def caches(k: torch.Tensor, v: torch.Tensor) -> Iterator[tuple[str, Cache]]:
    """One at a time, so that memory holds it. Ragged: with lengths from 1 to all, at random."""
    batch, rows = k.shape[:2]
    entries = Cache(k, v, torch.full((batch,), rows, dtype=torch.int32, device=k.device))
    small = Cache(k.to(_FP8), v.to(_FP8), entries.lengths)
    lengths = torch.randint(1, rows + 1, (batch,), dtype=torch.int32, device=k.device)
    yield "entries", entries
    for page_size in _PAGE_SIZES:
        if k.shape[1] % page_size == 0:
            yield f"pages of {page_size}", paged(entries, page_size)
    if batch > 1:
        yield f"ragged pages of {_PAGE_SIZES[0]}", paged(Cache(k, v, lengths), _PAGE_SIZES[0])
    yield "fp8", small
    yield f"fp8 pages of {_FP8_PAGE_SIZE}", paged(small, _FP8_PAGE_SIZE)


def paged(entries: Cache, page_size: int) -> Cache:
    """In random order."""
    batch, rows = entries.k.shape[:2]
    pages = rows // page_size
    table = torch.randperm(batch * pages, device=entries.k.device).int().reshape(batch, pages)
    k, v = (torch.empty_like(t).view(-1, page_size, *t.shape[2:]) for t in (entries.k, entries.v))
    for to, t in ((k, entries.k), (v, entries.v)):
        to.view(torch.uint8)[table.flatten().long()] = t.reshape(to.shape).view(torch.uint8)
    return Cache(k, v, entries.lengths, table)


def candidates(
    q: torch.Tensor, cache: Cache, others: Sequence[FlashDecodeKernelConfig] = ()
) -> dict[str, Run]:
    """Ours, other configurations, and the peers that take this cache."""
    decode = partial(
        flashsmith.decode, q=q, k_cache=cache.k, v_cache=cache.v, cache_seqlens=cache.lengths,
        block_table=cache.table,
    )  # fmt: skip
    runs: dict[str, Run] = {
        name: partial(decode, None, splits=splits) for name, splits in _OUR_SPLITS.items()
    }
    for config in others:
        if (config.d_head, config.fp8_cache) == (q.shape[-1], cache.k.dtype == _FP8):
            runs[str(config)] = partial(decode, config)
    if cache.table is None and cache.k.dtype == q.dtype:
        runs[_BY_ATTENTION] = partial(flashsmith.attention, q, cache.k, cache.v)
    if cache.k.dtype == _FP8:
        ones = torch.ones(cache.k.shape[:3], device=q.device)
        runs[_OF_TOKENS] = partial(runs[OURS], k_scale=ones, v_scale=ones.clone())
    for name, peer in PEERS.items():
        if peer.why_missing():
            continue
        try:
            run = peer.make(q, cache)
            if run is not None:
                run()
                runs[name] = run
        except (RuntimeError, ValueError, TypeError, ImportError) as error:
            print(f"{name} does not run: {str(error).splitlines()[0]}", flush=True)
    return runs


def config_named(name: str) -> FlashDecodeKernelConfig:
    """Raises ValueError: it is none of the sm80 family's decode, whose rows fit few queries."""
    config = parse_kernel_name_into_config(name)
    if not isinstance(config, FlashDecodeKernelConfig):
        raise ValueError(f"--config is {name}; expected one of the sm80 family's decode")
    return config


def check_and_time(
    title: str, runs: Mapping[str, Run], expected: torch.Tensor, repeats: int
) -> tuple[dict[str, float], dict[str, Timing]]:
    """Errors, which are reported where they are too large, and times in turn."""
    errors = {name: error_of(run(), expected) for name, run in runs.items()}
    if wrong := {name: error for name, error in errors.items() if not error < _TOLERANCE}:
        print(f"WRONG {title}: {wrong}", flush=True)
    return errors, time_interleaved(runs, repeats=repeats, head_start=_HEAD_START)


def rows_of(
    shape: Shape, repeats: int, others: Sequence[FlashDecodeKernelConfig] = ()
) -> Iterator[dict[str, Any]]:
    """Checks, times and reports one shape."""
    q, k, v = tensors_of(shape)
    for kind, cache in caches(k, v):
        runs = candidates(q, cache, others)
        expected = reference(q, k, v, cache.lengths)
        errors, times = check_and_time(f"{shape} {kind}", runs, expected, repeats)
        best = min((times[name].ms for name in runs if name in PEERS), default=None)
        n_bytes = cache.lengths.sum().item() * 2 * cache.k[0, 0].nbytes
        for name, timing in times.items():
            ratio = "" if best is None or name in PEERS else f"{best / timing.ms:.3f}"
            yield asdict(shape) | {
                "cache": kind,
                "candidate": name,
                "in_turn_us": f"{timing.ms * 1e3:.2f}",
                "gb_per_s": f"{n_bytes / timing.ms / 1e6:.0f}",
                "in_turn_of_best_peer": ratio,
                "error": f"{errors[name]:.2g}",
            }


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Of the first request and the last, in float32."""
    rows = [
        reference_attention(
            q[i : i + 1], *(t[i : i + 1, :n] for t in (k, v)), compute=torch.float32
        )
        for i, n in ((0, lengths[0].item()), (len(q) - 1, lengths[-1].item()))
    ]
    return torch.cat(rows)


def error_of(o: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, of the largest element."""
    difference = (o[[0, -1]].float() - expected).abs().max() / expected.abs().max()
    return difference.item()


def host_us() -> float:
    """Microseconds until a call is queued, of problems that are over sooner."""
    q, k, v = tensors_of(Shape(1, 64))
    _, cache = next(caches(k, v))
    run = candidates(q, cache)[OURS]
    for _ in range(_HOST_CALLS):
        run()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(_HOST_CALLS):
        run()
    taken = time.perf_counter() - begin
    torch.cuda.synchronize()
    return 1e6 * taken / _HOST_CALLS


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Geometric means over the shapes, and the lowest, of our ratios by kind of cache."""
    for kind in dict.fromkeys(row["cache"] for row in rows):
        ours = [r for r in rows if r["cache"] == kind and r["candidate"] == OURS]
        measured = [r for r in ours if r["in_turn_of_best_peer"]]
        for title, some in (
            ("all", measured),
            (f"up to {_SHORT}", [r for r in measured if r["context"] <= _SHORT]),
        ):
            if ratios := [float(row["in_turn_of_best_peer"]) for row in some]:
                mean = statistics.geometric_mean(ratios)
                yield f"{kind}, {title}: {mean:.3f}, least {min(ratios):.3f}, {len(ratios)} shapes"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--table", action="store_true", help="all of the table")
    parser.add_argument("--config", action="append", default=[], help="may be repeated")
    arguments = parser.parse_args()
    others = [config_named(name) for name in arguments.config]
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ[settings.BACKGROUND_BUILD.name] = "off"  # what is measured is what was chosen
    builds = {name: peer.why_missing() or peer.build() for name, peer in PEERS.items()}
    write_stamp(arguments.out / "decode.csv", **builds)
    torch.manual_seed(0)
    shapes = table() if arguments.table else SHAPES
    measured = (row for shape in shapes for row in rows_of(shape, arguments.repeats, others))
    rows = []
    for row in recorded(arguments.out / "decode.csv", COLUMNS, measured):
        rows.append(row)
        print(*row.values(), flush=True)
    print(*summary(rows), f"host: {host_us():.1f} us a call", sep="\n")


if __name__ == "__main__":
    main()
