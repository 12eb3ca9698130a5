"""Workspaces: zeroed, one a stream, and one of its own for each launch that a graph captures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from flashsmith.runtime import workspace
from flashsmith.runtime.workspace import workspace_for

CPU = torch.device("cpu")


class FakeCuda:
    """Two GPUs, each with a current stream; zeros in CPU memory stand for theirs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device, self.streams, self.capturing = 0, [7, 8], {7: False, 8: False, 9: False}
        zeros = torch.zeros
        monkeypatch.setattr(torch, "zeros", lambda n, dtype, device: zeros(n, dtype=dtype))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.device)
        monkeypatch.setattr(
            torch.cuda,
            "is_current_stream_capturing",
            lambda: self.capturing[self.streams[self.device]],
        )
        monkeypatch.setattr(torch.cuda, "device", self.guard)
        monkeypatch.setattr(
            torch._C, "_cuda_getCurrentRawStream", lambda i: self.streams[i], raising=False
        )

    @contextmanager
    def guard(self, device: torch.device) -> Iterator[None]:
        before, self.device = self.device, device.index
        yield
        self.device = before


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    workspace._of_stream.cache_clear()
    yield FakeCuda(monkeypatch)
    workspace._of_stream.cache_clear()


def at(n_bytes: int, index: int = 0) -> torch.Tensor:
    found = workspace_for(n_bytes, torch.device("cuda", index))
    assert found is not None and found.numel() == n_bytes and not found.any()
    return found


def test_no_bytes_are_no_tensor() -> None:
    assert workspace_for(0, CPU) is None


def test_cpu_launches_share_nothing() -> None:
    """A launch that the emulator stopped may have left its own dirty."""
    first, second = workspace_for(8, CPU), workspace_for(8, CPU)
    assert first is not None and second is not None
    assert first.data_ptr() != second.data_ptr()
    assert first.nbytes == 8 and not first.any()


def test_a_stream_has_one(cuda: FakeCuda) -> None:
    first = at(8)
    assert at(8) is first
    cuda.streams[0] = 9
    other = at(8)
    assert other is not first and at(8) is other
    cuda.streams[0] = 7
    assert at(8) is first


def test_devices_do_not_share(cuda: FakeCuda) -> None:
    cuda.streams = [0, 0]  # the default stream of each
    cuda.capturing[0] = False
    assert at(8, 0) is not at(8, 1)


@pytest.mark.parametrize("index", [0, 1], ids=["current device", "other device"])
def test_captured_launches_get_their_own(cuda: FakeCuda, index: int) -> None:
    eager = at(8, index)
    cuda.capturing[cuda.streams[index]] = True
    captured = [at(8, index) for _ in range(2)]
    assert len({id(each) for each in (eager, *captured)}) == 3
    cuda.capturing[cuda.streams[index]] = False
    assert at(8, index) is eager
    assert cuda.device == 0


def test_it_costs_next_to_nothing(cuda: FakeCuda) -> None:
    device = torch.device("cuda", 0)
    workspace_for(8, device)
    best = min(_seconds(device) for _ in range(20))
    assert best < 3e-6  # with the fake's lambdas


def _seconds(device: torch.device, calls: int = 200) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        workspace_for(8, device)
    return (time.perf_counter() - start) / calls
