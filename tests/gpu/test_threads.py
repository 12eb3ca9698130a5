"""Threads, streams and graphs at once on a GPU, and the memory that is kept between calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.runtime import workspace
from flashsmith.selection.choose import forget_calls
from support.stress import shared_by_threads, stress, table_of
from support.stress_works import Maker

pytestmark = pytest.mark.gpu

CALLS, THREADS = 12_000, 4


@pytest.fixture
def cuda() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def test_each_result_of_threads_streams_and_graphs_is_that_of_the_call_alone(
    cuda: torch.device,
) -> None:
    rows = stress(cuda, CALLS, THREADS)
    assert max(row.launches for row in rows) > 1
    assert not any(row.wrong for row in rows), "\n" + table_of(rows)


def test_memory_that_threads_share_would_be_noticed(
    cuda: torch.device,
) -> None:
    """The test shows that launches of two threads alternate, so that the test above can fail."""
    make = Maker(cuda)
    works = make.decodes_alike(3)
    with shared_by_threads():
        for seed in range(20):
            if any(row.wrong for row in stress(cuda, CALLS, THREADS, ["one stream"], seed, works)):
                return
    pytest.fail(f"{20 * CALLS} calls went well over memory that all threads share")


class Decoding:
    """A call that needs partial results and counters, and a call with a function."""

    def __init__(self, cuda: torch.device, rows: int = 5000) -> None:
        make = Maker(cuda)
        self.q = make.normal(2, 1, 8, 128)
        self.k, self.v = make.normal(2, rows, 2, 128), make.normal(2, rows, 2, 128)
        self.table = torch.rand(rows, device=cuda)

    def plain(self, q: torch.Tensor, **keywords: Any) -> torch.Tensor:
        return flashsmith.decode(None, q, self.k, self.v, **keywords)  # type: ignore[return-value]

    def with_function(self, q: torch.Tensor) -> torch.Tensor:
        return self.plain(q, score_mod=lambda s, b, h, i, j: s * self.table[j])


def test_the_first_call_of_a_thread_does_not_end_anothers_capture(
    cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Decoding(cuda)
    expected = asked.plain(asked.q)
    out = torch.zeros_like(expected)
    # Graphs need new memory. The old memory stays alive, since launches may still count there.
    monkeypatch.setattr(workspace, "_aside", {})
    graph = torch.cuda.CUDAGraph()

    def first() -> torch.Tensor:
        with torch.cuda.stream(torch.cuda.Stream(cuda)):
            return asked.plain(asked.q)

    other = ThreadPoolExecutor(1)
    with other, torch.cuda.graph(graph, capture_error_mode="thread_local"):
        asked.plain(asked.q, out=out)
        found = other.submit(first).result()
        asked.plain(asked.q, out=out)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_remembered_call_may_be_the_first_that_a_thread_makes(
    with_gradients: bool, cuda: torch.device
) -> None:
    """The driver needs a current context for tensor maps, and this thread has made none."""
    make = Maker(cuda)
    q, k, v = (make.normal(2, 200, 4, 128).requires_grad_(with_gradients) for _ in range(3))
    out = None if with_gradients else torch.empty_like(q)

    def call() -> tuple[torch.Tensor, ...]:
        o = flashsmith.attention(q, k, v, causal=True, out=out)
        if not with_gradients:
            return (o.clone(),)
        return torch.autograd.grad(o, (q, k, v), torch.ones_like(o))

    expected = call()
    for _ in range(2):
        with ThreadPoolExecutor(1) as other:
            found = other.submit(call).result()
        assert all(map(torch.equal, found, expected))


def pools_of_graphs() -> list[range]:
    return [
        range(segment["address"], segment["address"] + segment["total_size"])
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) != (0, 0)
    ]


@pytest.mark.parametrize("way", [Decoding.plain, Decoding.with_function])
def test_what_is_kept_is_not_of_the_memory_of_compiled_graphs(
    way: Callable[[Decoding, torch.Tensor], torch.Tensor],
    cuda: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Inductor tries, captures and replays the call before an eager call keeps anything."""
    asked = Decoding(cuda)
    expected = way(asked, asked.q * 2) + 1
    monkeypatch.setattr(workspace, "_kept", workspace._Kept())
    forget_calls()
    torch._dynamo.reset()

    def step(q: torch.Tensor) -> torch.Tensor:
        return way(asked, q * 2) + 1

    compiled = torch.compile(step, mode="reduce-overhead")
    found = [compiled(asked.q).clone() for _ in range(6)]
    assert all(torch.equal(each, expected) for each in found)
    assert pools_of_graphs(), "nothing was captured"
    kept = [t.data_ptr() for t in workspace._kept.memory.values()]
    assert kept and not any(place in pool for place in kept for pool in pools_of_graphs())
    assert torch.equal(way(asked, asked.q * 2) + 1, expected)


def test_threads_that_come_and_go_leave_nothing_behind(cuda: torch.device) -> None:
    """A thread's memory is released at its end, but no other thread gets it before its launches
    end."""
    asked = Decoding(cuda)
    expected = asked.plain(asked.q)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated(cuda)
        wrong = torch.zeros((), dtype=torch.int64, device=cuda)
        for _ in range(100):
            with ThreadPoolExecutor(2) as threads:
                found = list(threads.map(lambda _: asked.plain(asked.q), range(4)))
            wrong += torch.stack([(each != expected).any() for each in found]).sum()
        assert wrong.item() == 0
        del found, wrong
        assert torch.cuda.memory_allocated(cuda) <= held
    finally:
        sys.setswitchinterval(before)
