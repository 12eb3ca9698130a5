"""Threads, streams and graphs at once: each result has the bits of the same call made alone.

On a GPU:  python tests/support/stress.py --calls 100000 --threads 4 --out DIR

With --broken, all threads share the workspace that is kept for a stream, and make only calls of two
launches: on a GPU this has to give wrong results, if not in every run of about ten thousand calls.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

os.environ.setdefault("FLASHSMITH_BACKGROUND_BUILD", "off")  # a fallback has other bits

import torch

if not __package__:  # a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from flashsmith.runtime import workspace
from flashsmith.runtime.launch_cache import UNKNOWN, launch_cache
from support.stress_works import Call, Maker, Work, works_on

Results = tuple[torch.Tensor, ...]
MODES = ("one stream", "a stream each", "streams of all")
_ROUNDS = 4  # of each mode: after each, all threads end and new ones begin
_STREAMS = 3  # shared by all threads, in the last mode
_GRAPH_CALLS, _GRAPH_SHARE = 6, 0.1
_SWITCH_SECONDS = 1e-5  # between switches of threads: much more often than Python's default
_TIMEOUT_SECONDS = 600.0


class Row(NamedTuple):
    """The results of an operation's calls in one mode."""

    mode: str
    operation: str
    launches: int
    calls: int
    wrong: int


@dataclass
class Expected:
    """A work, and its results when it runs alone."""

    work: Work
    bits: Results
    launches: int

    @classmethod
    def of(cls, work: Work) -> Expected:
        call = work.make()
        found, launches = work.counted(call)
        expected = bits(found)
        again = bits(work.make()())
        assert all(map(torch.equal, again, expected)), f"{work.name} differs when alone"
        return cls(work, expected, launches)


def bits(found: Results) -> Results:
    """Returns results as integers, so that every bit counts."""
    return tuple(t.view(torch.int16 if t.element_size() == 2 else torch.int32) for t in found)


@dataclass(eq=False)
class OnStream:
    """A thread's state on a stream: counts of wrong results, calls, and a graph of some calls."""

    stream: Any  # None on a CPU
    wrong: list[torch.Tensor]  # for each work
    calls: dict[int, Call] = field(default_factory=dict)
    graph: Any = None
    outputs: list[tuple[int, Results]] = field(default_factory=list)

    @contextmanager
    def current(self) -> Iterator[None]:
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            yield


class Worker:
    """A thread's calls. It outlives the thread, for graphs and launches that are not finished."""

    def __init__(self, expected: Sequence[Expected], streams: Sequence[Any], seed: int) -> None:
        self._expected, self._random = expected, random.Random(seed)
        self._streams = streams
        self._on: list[OnStream] = []
        self.counts: Counter[int] = Counter()

    def prepare(self, device: torch.device, with_graph: bool) -> None:
        """Makes the streams' state and graphs, one thread at a time: capture waits for the GPU."""
        for stream in self._streams:
            on = OnStream(stream, [])
            with on.current():
                on.wrong = list(torch.zeros(len(self._expected), dtype=torch.int64, device=device))
            self._on.append(on)
            if with_graph:
                self._capture(on)

    def run(self, n_calls: int) -> None:
        while self.counts.total() < n_calls:
            on = self._random.choice(self._on)
            with on.current():
                if on.graph is not None and self._random.random() < _GRAPH_SHARE:
                    on.graph.replay()
                    for index, found in on.outputs:
                        self._compare(on, index, found)
                    continue
                index = self._random.randrange(len(self._expected))
                self._compare(on, index, self._call(on, index)())

    def wrong(self, index: int) -> int:
        """Returns the number of a work's wrong results; waits for all launches."""
        return sum(int(on.wrong[index].item()) for on in self._on)

    def _call(self, on: OnStream, index: int) -> Call:
        if index not in on.calls:
            on.calls[index] = self._expected[index].work.make()
        return on.calls[index]

    def _compare(self, on: OnStream, index: int, found: Results) -> None:
        self.counts[index] += 1
        differs = [
            (a != b).any() for a, b in zip(bits(found), self._expected[index].bits, strict=True)
        ]
        on.wrong[index].add_(differs[0] if len(differs) == 1 else torch.stack(differs).any())

    def _capture(self, on: OnStream) -> None:
        chosen = [i for i, each in enumerate(self._expected) if each.work.in_graphs]
        indices = self._random.choices(chosen, k=_GRAPH_CALLS)
        with on.current():
            calls = [self._call(on, index) for index in indices]
        on.stream.synchronize()
        on.graph = torch.cuda.CUDAGraph()
        is_default = on.stream == torch.cuda.default_stream()
        stream = None if is_default else on.stream
        with torch.cuda.graph(on.graph, stream=stream, capture_error_mode="thread_local"):
            on.outputs = [(index, call()) for index, call in zip(indices, calls, strict=True)]


def streams_of(mode: str, device: torch.device, n_threads: int) -> list[list[Any]]:
    """Returns the streams of each thread."""
    if device.type == "cpu":
        return [[None]] * n_threads
    if mode == "one stream":
        return [[torch.cuda.default_stream(device)]] * n_threads
    if mode == "a stream each":
        return [[torch.cuda.Stream(device)] for _ in range(n_threads)]
    shared = [torch.cuda.Stream(device) for _ in range(_STREAMS)]
    return [shared] * n_threads


def run_round(
    expected: Sequence[Expected], mode: str, n_threads: int, n_calls: int, seed: int
) -> list[Worker]:
    """Runs calls in ``n_threads`` threads, which end while launches are still running."""
    device = expected[0].bits[0].device
    streams = streams_of(mode, device, n_threads)
    workers = [Worker(expected, own, seed * n_threads + i) for i, own in enumerate(streams)]
    turn, together = threading.Lock(), threading.Barrier(n_threads, timeout=_TIMEOUT_SECONDS)

    def work(worker: Worker) -> None:
        try:
            with turn:
                worker.prepare(device, with_graph=device.type == "cuda")
            together.wait()
            worker.run(n_calls // n_threads)
        except BaseException:
            together.abort()
            raise

    with ThreadPoolExecutor(n_threads) as threads:
        for done in [threads.submit(work, worker) for worker in workers]:
            done.result()
    return workers


def stress(
    device: torch.device,
    n_calls: int,
    n_threads: int,
    modes: Sequence[str] = MODES,
    seed: int = 0,
    works: Sequence[Work] | None = None,
) -> list[Row]:
    """Returns the results of ``n_calls`` calls in all; each operation runs alone first.

    works: None: all.
    """
    works = works_on(device) if works is None else works
    with ThreadPoolExecutor(min(len(works), os.cpu_count() or 1)) as threads:
        list(threads.map(lambda work: work.make()(), works))  # builds missing kernels in parallel
    expected = [Expected.of(work) for work in works]
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        return [row for mode in modes for row in _rows_of(mode, expected, n_calls // len(modes),
                                                          n_threads, seed)]  # fmt: skip
    finally:
        sys.setswitchinterval(before)


def _rows_of(
    mode: str, expected: Sequence[Expected], n_calls: int, n_threads: int, seed: int
) -> list[Row]:
    workers = [
        worker
        for turn in range(_ROUNDS)
        for worker in run_round(
            expected, mode, n_threads, max(n_calls // _ROUNDS, n_threads), seed * _ROUNDS + turn
        )
    ]
    if expected[0].bits[0].is_cuda:
        torch.cuda.synchronize()
    return [
        Row(
            mode,
            each.work.name,
            each.launches,
            sum(worker.counts[i] for worker in workers),
            sum(worker.wrong(i) for worker in workers),
        )
        for i, each in enumerate(expected)
    ]


@contextmanager
def shared_by_threads() -> Iterator[None]:
    """Makes all threads share the memory that is kept for a stream, which is wrong. The launch
    cache is bypassed, because it keeps memory for each thread."""
    shared = SimpleNamespace(memory={}, scratch={}, thread=None)
    kept, workspace._kept = workspace._kept, shared  # type: ignore[assignment]
    decode, launch_cache.decode = launch_cache.decode, lambda *_: UNKNOWN
    try:
        yield
    finally:
        workspace._kept, launch_cache.decode = kept, decode


def table_of(rows: Sequence[Row]) -> str:
    lines = [Row._fields, *([str(value) for value in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(Row._fields))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--mode", choices=MODES, action="append", help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a folder for threads.csv")
    parser.add_argument("--broken", action="store_true", help="threads share what is kept")
    given = parser.parse_args()
    begin = time.perf_counter()
    device = torch.device(given.device)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    with shared_by_threads() if given.broken else nullcontext():
        # Other calls between them would hide that threads take turns.
        works = Maker(device).decodes_alike(3) if given.broken else None
        rows = stress(device, given.calls, given.threads, given.mode or MODES, given.seed, works)
    seconds = time.perf_counter() - begin
    print(table_of(rows))
    calls, wrong = sum(row.calls for row in rows), sum(row.wrong for row in rows)
    print(f"{calls} calls of {given.threads} threads, {wrong} wrong, {seconds:.0f} s")
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        with (given.out / "threads.csv").open("w", newline="") as file:
            csv.writer(file).writerows([Row._fields, *rows])
    if device.type == "cuda" and not any(row.launches > 1 for row in rows):
        print("no operation has two launches: nothing could have come between")
        return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
