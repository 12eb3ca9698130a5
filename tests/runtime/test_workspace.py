"""Workspaces: zeros are kept, one for each thread and stream; captured launches and larger
workspaces are separate."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from flashsmith.runtime import workspace
from flashsmith.runtime.plan import Plan
from flashsmith.runtime.workspace import Scratch, counters_for, workspace_for
from support.executed import executed

CPU = torch.device("cpu")
T = TypeVar("T")


class FakeStream(NamedTuple):
    number: int
    waited_for: list[int]

    def synchronize(self) -> None:
        self.waited_for.append(self.number)


class FakeCuda:
    """Two fake GPUs, each with a current stream; zeros in CPU memory stand for theirs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device, self.streams, self.capturing = 0, [7, 8], {7: False, 8: False, 9: False}
        self.in_use: list[tuple[int, int]] = []  # named streams, with the thread
        self.waited_for: list[int] = []  # streams
        for name in ("zeros", "empty"):
            make = getattr(torch, name)
            monkeypatch.setattr(
                torch, name, lambda n, dtype, device, make=make: make(n, dtype=dtype)
            )
        monkeypatch.setattr(torch.cuda, "device", self.guard)
        monkeypatch.setattr(torch.cuda, "current_stream", self.current_stream)
        monkeypatch.setattr(torch.cuda, "stream", self.on_stream)
        for name, answer in {
            "_cuda_getDevice": lambda: self.device,
            "_cuda_isCurrentStreamCapturing": lambda: self.capturing[self.streams[self.device]],
            "_cuda_getCurrentRawStream": lambda index: self.streams[index],
        }.items():
            monkeypatch.setattr(torch._C, name, answer, raising=False)

    @contextmanager
    def guard(self, device: torch.device) -> Iterator[None]:
        before, self.device = self.device, device.index
        yield
        self.device = before

    def current_stream(self, device: torch.device) -> FakeStream:
        return FakeStream(self.streams[device.index], self.waited_for)

    @contextmanager
    def on_stream(self, stream: FakeStream) -> Iterator[None]:
        self.in_use.append((stream.number, threading.get_ident()))
        yield


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    workspace._kept.clear()
    workspace._aside.clear()
    yield FakeCuda(monkeypatch)
    workspace._kept.clear()
    workspace._aside.clear()


QUEUE = Plan((), workspace_bytes=8, zeroed_bytes=8)
SPLITS = Plan((), workspace_bytes=1024, zeroed_bytes=0, counter_bytes=12)


def at(index: int = 0, plan: Plan = QUEUE) -> torch.Tensor:
    found = workspace_for(plan, torch.device("cuda", index))
    assert found is not None and found.numel() == plan.workspace_bytes
    assert not found[: plan.zeroed_bytes].any()
    return found


def test_no_bytes_are_no_tensor() -> None:
    assert workspace_for(Plan((), 0, 0), CPU) is None


def test_cpu_launches_share_nothing() -> None:
    """A launch that the emulator stopped may have left its own workspace dirty."""
    first, second = workspace_for(QUEUE, CPU), workspace_for(QUEUE, CPU)
    assert first is not None and second is not None
    assert first.data_ptr() != second.data_ptr()
    assert first.nbytes == 8 and not first.any()


def test_a_stream_has_one(cuda: FakeCuda) -> None:
    first = at()
    assert at() is first
    cuda.streams[0] = 9
    other = at()
    assert other is not first and at() is other
    cuda.streams[0] = 7
    assert at() is first


def in_another_thread(made: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as other:
        return other.submit(made).result()


def addresses(memory: Iterable[torch.Tensor | None]) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in memory if t is not None}


def test_threads_do_not_share_what_is_kept_of_a_stream(cuda: FakeCuda) -> None:
    """A call may have two launches, and another thread's launches may come in between: they would
    overwrite the partial results before they are combined."""
    gpu, plan = torch.device("cuda", 0), replace(SPLITS, workspace_bytes=4096)
    scratch = Scratch(plan, gpu)
    mine = [at(), *scratch(), counters(gpu)]
    theirs = in_another_thread(lambda: [at(), *scratch(), counters(gpu)])
    assert not addresses(mine) & addresses(theirs)
    again = [at(), *scratch(), counters(gpu)]
    assert all(a is b for a, b in zip(mine, again, strict=True))


def test_eight_threads_at_once_have_each_their_own(cuda: FakeCuda) -> None:
    gpu = torch.device("cuda", 0)
    scratch, together = Scratch(replace(SPLITS, workspace_bytes=4096), gpu), threading.Barrier(8)

    def own(_: int) -> set[int]:
        together.wait()
        found = [addresses(scratch()) for _ in range(100)]
        together.wait()  # none ends earlier, since its memory would go to another thread
        assert all(each == found[0] for each in found)
        return found[0]

    with ThreadPoolExecutor(8) as threads:
        places = list(threads.map(own, range(8)))
    assert len(set.union(*places)) == 2 * 8


def test_what_a_thread_has_kept_goes_when_it_ends(cuda: FakeCuda) -> None:
    """The memory returns to torch's allocator, which gives it to the same stream alone."""
    gpu, scratch = torch.device("cuda", 0), Scratch(SPLITS, torch.device("cuda", 0))

    def kept() -> list[StorageWeakRef]:
        memory = [at(), *scratch(), counters(gpu)]
        return [StorageWeakRef(t.untyped_storage()) for t in memory if t is not None]

    storages = in_another_thread(kept)
    gc.collect()
    assert len(storages) == 4 and all(storage.expired() for storage in storages)


def test_coroutines_of_a_thread_share_what_it_keeps(cuda: FakeCuda) -> None:
    """No call yields to another in the middle."""
    scratch = Scratch(SPLITS, torch.device("cuda", 0))

    async def call() -> set[int]:
        await asyncio.sleep(0)
        return addresses(scratch())

    async def calls() -> list[set[int]]:
        return list(await asyncio.gather(*(call() for _ in range(4))))

    first, *others = asyncio.run(calls())
    assert all(other == first for other in others)


def test_what_is_kept_is_not_of_memory_that_this_thread_allocates_from(cuda: FakeCuda) -> None:
    """This thread may allocate from a graph's pool during its warm-up; the stream is this
    thread's."""
    cuda.streams[1] = 9
    at(1)
    ((stream, thread),) = cuda.in_use
    assert stream == 9
    assert thread != threading.get_ident()


def counters(device: torch.device) -> torch.Tensor:
    found = counters_for(SPLITS, device)
    assert found is not None and found.nbytes >= SPLITS.counter_bytes
    return found


def test_counters_of_a_stream_outlive_a_capture_that_has_its_own(cuda: FakeCuda) -> None:
    """The counters of an aborted capture are not reused by anything else."""
    gpu = torch.device("cuda", 0)
    eager = counters(gpu)
    assert counters(gpu) is eager
    cuda.capturing[7] = True
    first, second = counters(gpu), counters(gpu)
    assert len({each.data_ptr() for each in (eager, first, second)}) == 3
    first.fill_(1)  # it was aborted
    cuda.capturing[7] = False
    assert counters(gpu) is eager
    assert not eager.any()


def test_a_capture_counts_in_zeros_that_were_set_aside(cuda: FakeCuda) -> None:
    """A graph that fills its zeros has one launch more at every replay."""
    gpu = torch.device("cuda", 0)
    counters(gpu)
    assert cuda.waited_for == [7]  # graphs begin on other streams
    cuda.capturing[7] = True
    made = torch.zeros
    torch.zeros = None  # type: ignore[assignment]
    try:
        found = [counters(gpu) for _ in range(50)]
    finally:
        torch.zeros = made
    places = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in found)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(places))
    assert not any(t.any() for t in found)


def test_what_is_set_aside_ends_and_comes_again_with_the_next_size(cuda: FakeCuda) -> None:
    gpu = torch.device("cuda", 0)
    plan = replace(SPLITS, counter_bytes=workspace._ASIDE_BYTES // 2)
    counters(gpu)
    cuda.capturing[7] = True
    found = [counters_for(plan, gpu) for _ in range(3)]
    assert not any(t is None or t.any() for t in found)
    assert len({t.untyped_storage().data_ptr() for t in found if t is not None}) == 2
    cuda.capturing[7] = False
    counters_for(plan, gpu)
    assert len(cuda.waited_for) == 2
    aside = workspace._aside[gpu]
    chunks = workspace._MAX_ASIDE_BYTES // workspace._ASIDE_BYTES
    for _ in range(2 * chunks):
        aside.take(workspace._ASIDE_BYTES)
        aside.refill(gpu)
    assert len(cuda.waited_for) == chunks


def test_what_graphs_count_in_outlives_the_call_and_the_next_chunk(cuda: FakeCuda) -> None:
    """A graph holds no tensor, so its counters must not be given to another call."""
    gpu = torch.device("cuda", 0)
    counters(gpu)
    cuda.capturing[7] = True
    storages = [StorageWeakRef(counters(gpu).untyped_storage())]
    large = replace(SPLITS, counter_bytes=workspace._ASIDE_BYTES - 4096)
    for size in (1, 2, 3):
        found = counters_for(large, gpu)
        assert found is not None
        storages.append(StorageWeakRef(found.untyped_storage()))
        del found
        cuda.capturing[7] = False
        counters_for(replace(SPLITS, counter_bytes=4096 << size), gpu)
        cuda.capturing[7] = True
    assert len(cuda.waited_for) == 4
    assert not any(storage.expired() for storage in storages)


def test_two_captures_at_once_are_given_other_pieces(cuda: FakeCuda) -> None:
    gpu = torch.device("cuda", 0)
    counters(gpu)
    aside = workspace._aside[gpu]
    with ThreadPoolExecutor(8) as threads:
        pieces = list(threads.map(lambda _: aside.take(16), range(2000)))
    places = [piece.data_ptr() for piece in pieces if piece is not None]
    assert len(set(places)) == len(places) == 2000


def test_counters_on_a_cpu_are_each_calls_own() -> None:
    """A launch that the emulator stopped may have left its own counters dirty."""
    first, second = counters(CPU), counters(CPU)
    assert first.data_ptr() != second.data_ptr()
    assert not first.any()


def test_no_counters_are_no_tensor() -> None:
    assert counters_for(QUEUE, CPU) is None


def test_devices_do_not_share(cuda: FakeCuda) -> None:
    cuda.streams = [0, 0]  # the default stream of each
    cuda.capturing[0] = False
    assert at(0) is not at(1)


@pytest.mark.parametrize("index", [0, 1], ids=["current device", "other device"])
def test_captured_launches_get_their_own(cuda: FakeCuda, index: int) -> None:
    eager = at(index)
    cuda.capturing[cuda.streams[index]] = True
    captured = [at(index) for _ in range(2)]
    assert len({id(each) for each in (eager, *captured)}) == 3
    cuda.capturing[cuda.streams[index]] = False
    assert at(index) is eager
    assert cuda.device == 0


def test_the_scratch_of_a_stream_is_kept_up_to_a_size_and_its_parts_are_two(cuda: FakeCuda) -> None:
    gpu = torch.device("cuda", 0)
    plan = Plan((), workspace_bytes=4096, zeroed_bytes=0, counter_bytes=4096)
    scratch = Scratch(plan, gpu)
    found = scratch()
    assert all(t is not None and t.nbytes >= 4096 for t in found)
    assert found[0] is not found[1]
    for again in (scratch(), Scratch(plan, gpu)()):  # plans with equal needs share
        assert all(a is b for a, b in zip(again, found, strict=True))
    cuda.capturing[7] = True
    captured = scratch()
    assert not {id(t) for t in captured} & {id(t) for t in found}
    cuda.capturing[7] = False
    cuda.streams[0] = 9
    of_other_stream = scratch()
    assert not {id(t) for t in of_other_stream} & {id(t) for t in (*found, *captured)}
    cuda.streams[0] = 7
    assert scratch()[0] is found[0]
    large = Scratch(replace(plan, workspace_bytes=1 << 25), gpu)
    assert large()[0] is not large()[0]
    assert Scratch(replace(plan, workspace_bytes=0, counter_bytes=0), gpu)() == (None, None)


def test_what_is_more_than_zeros_is_each_calls_own(cuda: FakeCuda) -> None:
    """Memory of the problem's size is not kept: the next call may need gigabytes elsewhere."""
    plan = Plan((), workspace_bytes=1024, zeroed_bytes=8)
    first, second = at(plan=plan), at(plan=plan)
    assert first.data_ptr() != second.data_ptr()


def test_it_costs_next_to_nothing(cuda: FakeCuda) -> None:
    device = torch.device("cuda", 0)
    cost = executed(lambda: workspace_for(QUEUE, device))  # with the fake's lambdas
    assert 0 < cost.instructions < 140
    assert cost.c_calls <= 2


def test_memory_for_other_calls_is_enough_for_those_before(cuda: FakeCuda) -> None:
    gpu = torch.device("cuda", 0)
    few = Plan((), workspace_bytes=1 << 16, zeroed_bytes=0, counter_bytes=64)
    many = Plan((), workspace_bytes=64, zeroed_bytes=0, counter_bytes=1 << 16)
    for scratch in (
        Scratch(few, gpu).that_also_serves(many),
        Scratch(many, gpu).that_also_serves(few),
    ):
        workspace, zeros = scratch()
        assert workspace is not None and workspace.nbytes >= 1 << 16
        assert zeros is not None and zeros.nbytes >= 1 << 16
