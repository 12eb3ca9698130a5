"""Measures a user's first waits: many shapes, then a model, from an empty kernel cache.

    python benchmarks/first_calls.py --out benchmarks/results/h200/2026-01-01
    python benchmarks/first_calls.py --small --out build/emulator

112 mixed shapes go through ``attention`` once each, which orders kernels in the background. During
these builds, a small Llama with random weights generates tokens for a batch padded on the left, by
transformers with flashsmith's attention: first a few, which wait for kernels without a stand-in,
then all. SDPA's time for the same tokens is taken before, when nothing else runs. After the last
build, both generate all tokens in turn, three times. Results are checked against SDPA's, outside of
the timed parts. The column ``builders`` is the number of threads that were building when a row
began. Writes first_calls.csv and first_calls_environment.json.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers.generation import BaseStreamer

import flashsmith
from flashsmith import settings
from flashsmith.integrations.transformers import register
from flashsmith.lab.bench.llama import random_llama
from flashsmith.lab.bench.rows_file import make_parser, recorded, write_stamp

COLUMNS = (
    *("work", "candidate", "batch", "heads", "heads_kv", "d_head", "length", "mask"),
    *("builders", "seconds", "slowest_ms", "of_sdpa", "error"),
)
OURS, SDPA = "flashsmith", "sdpa"
_TOLERANCE = 0.05  # of the largest element: all candidates round to the same dtype
_BUILDERS = "flashsmith builds"  # the name of building threads


class Grid(NamedTuple):
    batch: int
    heads: int
    heads_kv: int


@dataclass(frozen=True)
class Sizes:
    """The sizes of the called shapes, and of the model that generates."""

    device: str = "cuda"
    grids: Sequence[Grid] = (Grid(1, 8, 8), Grid(4, 8, 2), Grid(1, 32, 8), Grid(8, 16, 16))
    d_heads: Sequence[int] = (64, 128)
    lengths: Sequence[int] = (17, 64, 200, 512, 1000, 2048, 4096)
    layers: int = 8
    heads: int = 8
    heads_kv: int = 2
    d_head: int = 128
    prompt: int = 64
    batch: int = 4
    first_tokens: int = 3
    tokens: int = 100
    turns: int = 3  # after the last build

    @property
    def shapes(self) -> Iterator[tuple[int, Grid, int, bool]]:
        """Lengths, grids, d_heads and whether they are causal; each differs from the one before."""
        return itertools.product(self.lengths, self.grids, self.d_heads, (False, True))


SMALL = Sizes(
    device="cpu",
    grids=(Grid(1, 2, 1),),
    d_heads=(96,),
    lengths=(64, 128),  # the heuristic's tiles differ, and the first's stand in for the second's
    layers=1,
    heads=2,
    heads_kv=1,
    d_head=64,
    prompt=8,
    batch=2,
    first_tokens=2,
    tokens=4,
    turns=1,
)


class Clock(BaseStreamer):  # type: ignore[misc]
    """Records the arrival time of each token; the prompt counts as the first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:  # gets the prompt, then each step, on the host
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def call_each(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Calls ``attention`` once for each shape, and yields a row with the seconds that it took."""
    for length, grid, d_head, causal in sizes.shapes:
        batch, heads, heads_kv = grid
        q = _randn(sizes.device, batch, length, heads, d_head)
        k, v = (_randn(sizes.device, batch, length, heads_kv, d_head) for _ in range(2))
        builders, begin = len(builder_threads()), time.perf_counter()
        o = flashsmith.attention(q, k, v, causal=causal)
        _synchronize(sizes.device)
        seconds = time.perf_counter() - begin
        heads_first = (t.transpose(1, 2) for t in (q, k, v))
        expected = F.scaled_dot_product_attention(*heads_first, is_causal=causal, enable_gqa=True)
        yield {
            "work": "first call of a shape",
            "candidate": OURS,
            **grid._asdict(),
            "d_head": d_head,
            "length": length,
            "mask": "causal" if causal else "full",
            "builders": builders,
            "seconds": f"{seconds:.4f}",
            "error": f"{_error(o, expected.transpose(1, 2)):.2g}",
        }


class Generation:
    """Generates the same tokens by several attention implementations."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        torch.manual_seed(0)
        self.model = random_llama(sizes, pad_token_id=0).eval()
        shape = sizes.batch, sizes.prompt
        self.prompt = torch.randint(1, self.model.config.vocab_size, shape, device=sizes.device)
        places = torch.arange(sizes.prompt, device=sizes.device)
        padding = torch.arange(sizes.batch, device=sizes.device)[:, None] * sizes.prompt // 8
        self.mask = (places >= padding).long()

    @torch.no_grad()
    def seconds_by(self, attention: str, n: int) -> tuple[float, float]:
        """Returns the seconds of n tokens, and of the slowest one."""
        self.model.set_attn_implementation(attention)
        clock = Clock()
        self.model.generate(
            self.prompt, attention_mask=self.mask, streamer=clock, do_sample=False,
            min_new_tokens=n, max_new_tokens=n,
        )  # fmt: skip
        _synchronize(self.sizes.device)
        steps = [after - before for before, after in itertools.pairwise(clock.times)]
        return sum(steps), max(steps)

    @torch.no_grad()
    def logits_by(self, attention: str) -> torch.Tensor:
        """Returns the logits of the prompt's last token, which is padding in no sequence."""
        self.model.set_attn_implementation(attention)
        logits: torch.Tensor = self.model(self.prompt, attention_mask=self.mask).logits
        return logits[:, -1]

    def row(self, candidate: str, attention: str, n: int) -> dict[str, Any]:
        sizes, builders = self.sizes, len(builder_threads())
        seconds, slowest = self.seconds_by(attention, n)
        return {
            "work": f"{n} tokens",
            "candidate": candidate,
            "batch": sizes.batch,
            "heads": sizes.heads,
            "heads_kv": sizes.heads_kv,
            "d_head": sizes.d_head,
            "length": sizes.prompt,
            "mask": "causal, padded",
            "builders": builders,
            "seconds": f"{seconds:.4f}",
            "slowest_ms": f"{1000 * slowest:.2f}",
        }


def measure(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yields all rows, each as soon as it is known."""
    generation, name = Generation(sizes), register()

    def ours(n: int, sdpa: dict[str, Any]) -> dict[str, Any]:
        row = generation.row(OURS, name, n)
        row["of_sdpa"] = f"{float(row['seconds']) / float(sdpa['seconds']):.3f}"
        row["error"] = f"{_error(generation.logits_by(name), generation.logits_by(SDPA)):.2g}"
        return row

    before = {}
    for n in (sizes.first_tokens, sizes.tokens):
        generation.seconds_by(SDPA, n)  # torch's own first-call costs are left out
        before[n] = generation.row(SDPA, SDPA, n)
        yield before[n]
    yield from call_each(sizes)
    for n in (sizes.first_tokens, sizes.tokens):
        yield ours(n, before[n])
    wait_for_builds()
    for _ in range(sizes.turns):
        beside = generation.row(SDPA, SDPA, sizes.tokens)
        yield beside
        yield ours(sizes.tokens, beside)


def builder_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == _BUILDERS]


def wait_for_builds() -> None:
    for thread in builder_threads():
        thread.join()


def _randn(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=torch.bfloat16)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the largest error, as a share of the largest element."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


def main(words: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--small", action="store_true", help="few shapes, on the emulator")
    parser.add_argument("--cache", type=Path, help="kernel cache; default: an empty one")
    arguments = parser.parse_args(words)
    sizes = SMALL if arguments.small else Sizes()
    with ExitStack() as stack:
        cache = arguments.cache
        if cache is None:
            empty = tempfile.TemporaryDirectory(prefix="flashsmith-", ignore_cleanup_errors=True)
            cache = stack.enter_context(empty)
        os.environ[settings.CACHE_DIR.name] = str(cache)
        os.environ[settings.BACKGROUND_BUILD.name] = "on"
        kept = "empty" if arguments.cache is None else "given"
        path = arguments.out / "first_calls.csv"
        write_stamp(path, sizes.device, cache=kept, cores=str(os.cpu_count()))
        for row in recorded(path, COLUMNS, measure(sizes)):
            print(*(row[name] for name in COLUMNS if name in row), flush=True)
            if not float(row.get("error", 0)) < _TOLERANCE:
                print(f"WRONG: the error is {row['error']} of the largest element", flush=True)
        wait_for_builds()  # before their cache is removed


if __name__ == "__main__":
    main()
