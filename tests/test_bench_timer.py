"""The timers, on a GPU that is played: a stream, events on it, and the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashsmith.bench import Timing, time_back_to_back, time_interleaved, timer

FLUSH_MS = 0.1


class FakeGpu:
    """What is queued runs in order, not before the host queued it. Times are in milliseconds."""

    def __init__(self) -> None:
        self.host = 0.0
        self.free_at = 0.0  # when the stream has done what is queued
        self.log: list[str] = []
        self.work: list[tuple[float, float, str]] = []  # begin, end, what

    def queue(self, what: str, gpu_ms: float, host_ms: float = 0.0) -> None:
        self.host += host_ms
        begin = max(self.free_at, self.host)
        self.free_at = begin + gpu_ms
        self.log.append(what)
        self.work.append((begin, self.free_at, what))

    def launch(self, name: str, times: list[float] | float, host_ms: float = 0.0) -> Any:
        """A candidate; of a list, each run takes the next time."""
        left = iter(times if isinstance(times, list) else [])
        return lambda: self.queue(
            f"run {name}", next(left) if isinstance(times, list) else times, host_ms
        )

    def synchronize(self) -> None:
        self.log.append("synchronize")
        self.host = max(self.host, self.free_at)

    def sleep(self, seconds: float) -> None:
        self.log.append(f"pause {seconds:g}")
        self.host += 1e3 * seconds

    def occupy(self, cycles: int) -> None:
        self.queue("occupy", cycles / timer._CYCLES_PER_MS)

    def index(self, what: str) -> list[int]:
        return [i for i, each in enumerate(self.log) if each == what]


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.at: float | None = None

    def record(self) -> None:
        self._gpu.log.append("event")
        self.at = max(self._gpu.free_at, self._gpu.host)

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.at is not None
        assert end.at is not None
        assert self._gpu.host >= end.at, "asked before the event has passed"
        return end.at - self.at


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()

    def event(*, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        return FakeEvent(fake)

    def empty(n_bytes: int, **_: Any) -> Any:
        assert n_bytes >= 128 << 20  # the L2 of a B200 has 126 MB
        return SimpleNamespace(zero_=lambda: fake.queue("flush", FLUSH_MS))

    cuda = SimpleNamespace(Event=event, synchronize=fake.synchronize, _sleep=fake.occupy)
    monkeypatch.setattr(timer, "torch", SimpleNamespace(cuda=cuda, empty=empty, int8="int8"))
    clock = SimpleNamespace(sleep=fake.sleep, perf_counter=lambda: fake.host / 1e3)
    monkeypatch.setattr(timer, "time", clock)
    return fake


# In turn.


def test_in_turn_flushes_before_each_timed_run(gpu: FakeGpu) -> None:
    time_interleaved({"a": gpu.launch("a", 1.0), "b": gpu.launch("b", 2.0)}, repeats=3, warmup=2)
    warmup = ["run a", "run b"] * 2
    timed = [
        *("flush", "event", "run a", "event"),
        *("flush", "event", "run b", "event"),
    ]
    assert gpu.log == [*warmup, *timed * 3, "synchronize"]


def test_in_turn_gives_median_and_quintiles_without_warmup_and_flush(gpu: FakeGpu) -> None:
    a = [100.0, 200.0, *(float(i) for i in (9, 1, 2, 8, 3, 7, 4, 6, 5))]  # the first two warm up
    b = [1.0] * 11
    times = time_interleaved(
        {"a": gpu.launch("a", a), "b": gpu.launch("b", b)}, repeats=9, warmup=2
    )
    assert times["a"] == Timing(pytest.approx(5.0), pytest.approx(2.0), pytest.approx(8.0))
    assert times["b"].median == pytest.approx(1.0)


def test_in_turn_one_run_is_its_own_median(gpu: FakeGpu) -> None:
    times = time_interleaved({"a": gpu.launch("a", [9.0, 3.0])}, repeats=1, warmup=1)
    assert times["a"] == Timing(*[pytest.approx(3.0)] * 3)


def test_in_turn_hides_the_hosts_cost_behind_the_flush(gpu: FakeGpu) -> None:
    times = time_interleaved({"a": gpu.launch("a", 0.01, host_ms=0.05)}, repeats=5)
    assert times["a"].median == pytest.approx(0.01)


def test_in_turn_pauses_with_an_idle_gpu_before_each_flush(gpu: FakeGpu) -> None:
    runs = {"a": gpu.launch("a", 1.0), "b": gpu.launch("b", 2.0)}
    time_interleaved(runs, repeats=2, warmup=0, pause=0.25)
    assert gpu.log[:6] == ["synchronize", "pause 0.25", "flush", "event", "run a", "event"]
    assert gpu.log.count("pause 0.25") == 4
    flushes = [begin for begin, _, what in gpu.work if what == "flush"]
    ends = [end for _, end, what in gpu.work if what.startswith("run")]
    for end, begin in zip(ends, flushes[1:], strict=False):
        assert begin - end >= 250


# Back to back.


def busy_ms(gpu: FakeGpu, name: str) -> float:
    return sum(end - begin for begin, end, what in gpu.work if what == f"run {name}")


def test_back_to_back_runs_each_alone_for_as_long_as_asked(gpu: FakeGpu) -> None:
    runs = {"a": gpu.launch("a", 0.5), "b": gpu.launch("b", 2.0)}
    times = time_back_to_back(runs, milliseconds=80, warmup_ms=30, rounds=1)
    assert {name: timing.median for name, timing in times.items()} == {
        "a": pytest.approx(0.5),
        "b": pytest.approx(2.0),
    }
    assert "flush" not in gpu.log
    assert max(gpu.index("run a")) < min(gpu.index("run b"))
    for name in runs:
        assert 110 <= busy_ms(gpu, name) <= 130  # and a few to find out how long one takes


def test_back_to_back_rounds_go_both_ways_and_nobody_rests(gpu: FakeGpu) -> None:
    """The median is over all rounds: here each run of a candidate takes longer by a bit."""
    order: list[str] = []
    worked: dict[str, float] = {"a": 0.0, "b": 0.0, "c": 0.0}

    def candidate(name: str) -> Callable[[], None]:
        def run() -> None:
            if not order or order[-1] != name:
                order.append(name)
            worked[name] += 1.0
            gpu.queue(f"run {name}", 1.0 + worked[name] / 1000)

        return run

    times = time_back_to_back(
        {name: candidate(name) for name in worked}, milliseconds=60, warmup_ms=20, rounds=4
    )
    # a b c, c b a, b c a, a c b: where two meet they are one turn here.
    assert order == ["a", "b", "c", "b", "a", "b", "c", "a", "c", "b"]
    assert not any(what.startswith("pause") for what in gpu.log)
    for name, timing in times.items():  # half of what is timed lies in the first two rounds
        assert timing.median == pytest.approx(1.0 + worked[name] / 2000, rel=0.02)


def test_back_to_back_has_no_gap_once_the_candidate_is_warm(gpu: FakeGpu) -> None:
    time_back_to_back(
        {"a": gpu.launch("a", 0.5, host_ms=0.02)}, milliseconds=80, warmup_ms=30, rounds=1
    )
    runs = [(begin, end) for begin, end, what in gpu.work if what == "run a"]
    steady = runs[timer._PACE_LAUNCHES :]
    assert len(steady) == 60 + 160
    assert gpu.log[-3:] == ["run a", "event", "synchronize"]  # the last one is timed too
    gaps = [begin - end for (_, end), (begin, _) in pairwise(steady)]
    assert max(gaps) == pytest.approx(0)


def test_back_to_back_measures_what_is_steady_and_not_the_warm_up(gpu: FakeGpu) -> None:
    """As a card that is at its power limit after 20 ms of work."""
    worked = 0.0

    def run() -> None:
        nonlocal worked
        gpu_ms = 1.0 if worked < 20 else 1.25
        worked += gpu_ms
        gpu.queue("run a", gpu_ms)

    timing = time_back_to_back({"a": run}, milliseconds=80, warmup_ms=30, rounds=2)["a"]
    assert timing == Timing(*[pytest.approx(1.25)] * 3)


@pytest.mark.parametrize("host_ms", [0.005, 0.03, 0.1])
def test_back_to_back_leaves_the_hosts_cost_out(gpu: FakeGpu, host_ms: float) -> None:
    """Also where the host needs longer for a launch than the GPU."""
    timing = time_back_to_back({"a": gpu.launch("a", 0.02, host_ms)}, milliseconds=20)["a"]
    assert timing == Timing(*[pytest.approx(0.02)] * 3)


def test_back_to_back_times_a_long_one_a_few_times(gpu: FakeGpu) -> None:
    timing = time_back_to_back(
        {"a": gpu.launch("a", 60.0)}, milliseconds=80, warmup_ms=30, rounds=1
    )["a"]
    assert timing.median == pytest.approx(60.0)
    assert gpu.log.count("run a") == timer._PACE_LAUNCHES + 2 * timer._LEAST_LAUNCHES


def test_back_to_back_median_is_of_single_launches(gpu: FakeGpu) -> None:
    """One slow launch in four moves the mean, and not the median."""
    times: Callable[[], None] = gpu.launch("a", [1.0, 1.0, 1.0, 5.0] * 100)
    timing = time_back_to_back({"a": times}, milliseconds=80, warmup_ms=30, rounds=1)["a"]
    assert timing == Timing(*[pytest.approx(t) for t in (1.0, 1.0, 5.0)])


# On a GPU, with work of a known length: a kernel that waits for so many cycles.

SLEEP_MS = 1.0
TIMERS = [time_interleaved, time_back_to_back]


@pytest.mark.gpu
@pytest.mark.parametrize("measure", TIMERS)
def test_a_known_wait_is_measured(measure: Callable[..., dict[str, Timing]]) -> None:
    cycles = int(SLEEP_MS * timer._CYCLES_PER_MS)
    runs = {f"{n}": partial(torch.cuda._sleep, n * cycles) for n in (1, 3)}
    times = measure(runs)
    # At 2 GHz a wait has its length; at half the clock it takes twice as long.
    assert 0.9 * SLEEP_MS < times["1"].median < 2.2 * SLEEP_MS
    assert times["3"].median / times["1"].median == pytest.approx(3, rel=0.1)


@pytest.mark.gpu
def test_a_slow_host_is_not_measured_on_a_gpu() -> None:
    """The host needs 300 us for a launch of 50 us."""

    def run() -> None:
        time.sleep(0.0003)
        torch.cuda._sleep(timer._CYCLES_PER_MS // 20)

    assert time_back_to_back({"a": run}, milliseconds=10, warmup_ms=5)["a"].median < 0.15
