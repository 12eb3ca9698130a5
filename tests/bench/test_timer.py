"""The timers on a fake GPU, which has a stream, events and a host clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashsmith.lab.bench import timer
from flashsmith.lab.bench.timer import Timing, time_back_to_back, time_in_graph, time_interleaved
from support.undisturbed import once_undisturbed

FLUSH_MS = 0.1


class FakeGpu:
    """A GPU that runs queued work in order, never before the host queues it. Times are
    milliseconds."""

    def __init__(self) -> None:
        self.host = 0.0
        self.free_at = 0.0  # when the stream becomes idle
        self.log: list[str] = []
        self.work: list[tuple[float, float, str]] = []  # begin, end, name

    def queue(self, what: str, gpu_ms: float, host_ms: float = 0.0) -> None:
        self.host += host_ms
        begin = max(self.free_at, self.host)
        self.free_at = begin + gpu_ms
        self.log.append(what)
        self.work.append((begin, self.free_at, what))

    def launch(self, name: str, times: list[float] | float, host_ms: float = 0.0) -> Any:
        """Returns a candidate; with a list, each run takes the next time."""
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


# ---- in turn ----


def test_in_turn_flushes_before_each_timed_run(gpu: FakeGpu) -> None:
    time_interleaved({"a": gpu.launch("a", 1.0), "b": gpu.launch("b", 2.0)}, repeats=3, warmup=2)
    warmup = ["run a", "run b"] * 2
    timed = [
        *("flush", "occupy", "event", "run a", "event"),
        *("flush", "occupy", "event", "run b", "event"),
    ]
    assert gpu.log == [*warmup, *timed * 3, "synchronize"]


def test_in_turn_gives_median_and_quintiles_without_warmup_and_flush(gpu: FakeGpu) -> None:
    a = [100.0, 200.0, *(float(i) for i in (9, 1, 2, 8, 3, 7, 4, 6, 5))]  # the first two warm up
    b = [1.0] * 11
    times = time_interleaved(
        {"a": gpu.launch("a", a), "b": gpu.launch("b", b)}, repeats=9, warmup=2
    )
    assert times["a"] == Timing(pytest.approx(5.0), pytest.approx(2.6), pytest.approx(7.4))
    assert times["b"].ms == pytest.approx(1.0)


def test_in_turn_one_run_is_its_own_median(gpu: FakeGpu) -> None:
    times = time_interleaved({"a": gpu.launch("a", [9.0, 3.0])}, repeats=1, warmup=1)
    assert times["a"] == Timing(*[pytest.approx(3.0)] * 3)


def test_in_turn_hides_the_hosts_cost_behind_the_flush(gpu: FakeGpu) -> None:
    times = time_interleaved({"a": gpu.launch("a", 0.01, host_ms=0.05)}, repeats=5, head_start=0)
    assert times["a"].ms == pytest.approx(0.01)


def test_in_turn_hides_a_late_host_behind_the_head_start(gpu: FakeGpu) -> None:
    runs = {"a": gpu.launch("a", 0.01, host_ms=FLUSH_MS + 0.2)}
    assert time_interleaved(runs, repeats=5, head_start=0)["a"].ms > 0.1
    assert time_interleaved(runs, repeats=5)["a"].ms == pytest.approx(0.01)


def test_in_turn_hides_a_greater_cost_behind_a_longer_head_start(gpu: FakeGpu) -> None:
    runs = {"a": gpu.launch("a", 0.01, host_ms=FLUSH_MS + 0.9)}
    assert time_interleaved(runs, repeats=5)["a"].ms > 0.1
    times = time_interleaved(runs, repeats=5, head_start=1e-3)
    assert times["a"].ms == pytest.approx(0.01)
    assert gpu.log[-6:] == ["flush", "occupy", "event", "run a", "event", "synchronize"]


def test_in_turn_pauses_with_an_idle_gpu_before_each_flush(gpu: FakeGpu) -> None:
    runs = {"a": gpu.launch("a", 1.0), "b": gpu.launch("b", 2.0)}
    time_interleaved(runs, repeats=2, warmup=0, pause=0.25)
    assert gpu.log[:5] == ["synchronize", "pause 0.25", "flush", "occupy", "event"]
    assert gpu.log.count("pause 0.25") == 4
    flushes = [begin for begin, _, what in gpu.work if what == "flush"]
    ends = [end for _, end, what in gpu.work if what.startswith("run")]
    for end, begin in zip(ends, flushes[1:], strict=False):
        assert begin >= end + 250


# ---- back to back ----


def busy_ms(gpu: FakeGpu, name: str) -> float:
    return sum(end - begin for begin, end, what in gpu.work if what == f"run {name}")


def test_back_to_back_runs_each_alone_for_as_long_as_asked(gpu: FakeGpu) -> None:
    runs = {"a": gpu.launch("a", 0.5), "b": gpu.launch("b", 2.0)}
    times = time_back_to_back(runs, milliseconds=80, warmup_ms=30)
    assert {name: timing.ms for name, timing in times.items()} == {
        "a": pytest.approx(0.5),
        "b": pytest.approx(2.0),
    }
    assert "flush" not in gpu.log
    assert max(gpu.index("run a")) < min(gpu.index("run b"))
    assert 110 <= busy_ms(gpu, "b") <= 130  # further runs measure the time of one launch


def test_back_to_back_does_not_time_a_card_that_has_rested(gpu: FakeGpu) -> None:
    """A GPU that was idle runs faster for a second, so an uncounted round of the first candidate
    comes first."""

    def candidate(name: str) -> Callable[[], None]:
        return lambda: gpu.queue(f"run {name}", 1.0 if gpu.free_at < 1000 else 1.25)

    times = time_back_to_back({name: candidate(name) for name in ("a", "b")})
    assert [timing.ms for timing in times.values()] == [pytest.approx(1.25)] * 2
    assert not any(what.startswith("pause") for what in gpu.log)


def test_back_to_back_is_the_mean_over_a_clock_that_swings(gpu: FakeGpu) -> None:
    """A GPU at its power limit runs 25% slower in a quarter of each 800 ms."""
    for phase in (0.0, 0.25, 0.5, 0.75):

        def run(phase: float = phase) -> None:
            slow = (gpu.free_at / 800.0 + phase) % 1.0 < 0.25
            gpu.queue("run a", 1.25 if slow else 1.0)

        timing = time_back_to_back({"a": run})["a"]
        n_slow, n_fast = 0.25 * 800 / 1.25, 0.75 * 800
        assert timing.ms == pytest.approx(800 / (n_slow + n_fast), rel=0.01)


def test_back_to_back_has_no_gap_once_the_candidate_is_warm(gpu: FakeGpu) -> None:
    time_back_to_back(
        {"a": gpu.launch("a", 0.5, host_ms=0.02)},
        milliseconds=80,
        warmup_ms=30,
    )
    runs = [(begin, end) for begin, end, what in gpu.work if what == "run a"]
    steady = runs[-(60 + 160) :]
    assert len(runs) == 2 * (timer._PACE_LAUNCHES + 60 + 160)  # the first pass does not count
    assert gpu.log[-3:] == ["run a", "event", "synchronize"]  # the last run is timed too
    gaps = [begin - end for (_, end), (begin, _) in pairwise(steady)]
    assert max(gaps) == pytest.approx(0)


def test_back_to_back_measures_what_is_steady_and_not_the_warm_up(gpu: FakeGpu) -> None:
    """This GPU reaches its power limit after 20 ms of work."""
    worked = 0.0

    def run() -> None:
        nonlocal worked
        gpu_ms = 1.0 if worked < 20 else 1.25
        worked += gpu_ms
        gpu.queue("run a", gpu_ms)

    timing = time_back_to_back({"a": run}, milliseconds=80, warmup_ms=30)["a"]
    assert timing == Timing(*[pytest.approx(1.25)] * 3)


@pytest.mark.parametrize("host_ms", [0.005, 0.03, 0.1])
def test_back_to_back_leaves_the_hosts_cost_out(gpu: FakeGpu, host_ms: float) -> None:
    """The time is right even where the host needs longer for a launch than the GPU."""
    timing = time_back_to_back({"a": gpu.launch("a", 0.02, host_ms)}, milliseconds=20)["a"]
    assert timing == Timing(*[pytest.approx(0.02)] * 3)


def test_back_to_back_takes_as_long_as_asked_where_the_host_is_slower(gpu: FakeGpu) -> None:
    """A decode step is 10 us of the GPU and up to 100 us of the host."""
    time_back_to_back({"a": gpu.launch("a", 0.01, host_ms=0.1)}, milliseconds=80, warmup_ms=30)
    paces = 2 * timer._PACE_HEAD_START_MS
    assert gpu.host == pytest.approx(2 * (80 + 30) + paces, rel=0.1)


def test_back_to_back_times_a_long_one_a_few_times(gpu: FakeGpu) -> None:
    timing = time_back_to_back(
        {"a": gpu.launch("a", 60.0)},
        milliseconds=80,
        warmup_ms=30,
    )["a"]
    assert timing.ms == pytest.approx(60.0)
    assert gpu.log.count("run a") == 2 * (timer._PACE_LAUNCHES + 2 * timer._MIN_LAUNCHES)


def test_back_to_back_is_the_mean_with_quintiles_of_single_launches(gpu: FakeGpu) -> None:
    times: Callable[[], None] = gpu.launch("a", [1.0, 1.0, 1.0, 5.0] * 100)
    timing = time_back_to_back({"a": times}, milliseconds=80, warmup_ms=30)["a"]
    assert timing == Timing(*[pytest.approx(t) for t in (2.0, 1.0, 5.0)])


# ---- on a GPU, with a kernel that waits for a fixed number of cycles ----

SLEEP_MS = 1.0
TIMERS = [time_interleaved, time_back_to_back]


@pytest.mark.gpu
@pytest.mark.parametrize("measure", TIMERS)
def test_a_known_wait_is_measured(measure: Callable[..., dict[str, Timing]]) -> None:
    cycles = int(SLEEP_MS * timer._CYCLES_PER_MS)
    runs = {f"{n}": partial(torch.cuda._sleep, n * cycles) for n in (1, 3)}

    def check() -> None:
        times = measure(runs)
        # A wait takes its nominal time at 2 GHz, and twice as long at half the clock.
        assert 0.9 * SLEEP_MS < times["1"].ms < 2.2 * SLEEP_MS
        assert times["3"].ms / times["1"].ms == pytest.approx(3, rel=0.1)

    once_undisturbed(check)


@pytest.mark.gpu
def test_a_slow_host_is_not_measured_on_a_gpu() -> None:
    """The host needs 300 us to launch 50 us of work."""

    def run() -> None:
        time.sleep(0.0003)
        torch.cuda._sleep(timer._CYCLES_PER_MS // 20)

    assert time_back_to_back({"a": run}, milliseconds=10, warmup_ms=5)["a"].ms < 0.15


# ---- in a graph ----


def test_in_a_graph_a_call_is_a_share_of_a_replay(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[str] = []

    @contextmanager
    def capture(graph: Any) -> Iterator[None]:
        before = len(gpu.log)
        yield
        captured.extend(gpu.log[before:])

    replays = iter([4.0, 9.0, 5.0])
    graph = SimpleNamespace(replay=lambda: gpu.queue("replay", next(replays)))
    cuda = timer.torch.cuda
    monkeypatch.setattr(cuda, "CUDAGraph", lambda: graph, raising=False)
    monkeypatch.setattr(cuda, "graph", capture, raising=False)
    layers = [gpu.launch("a", 1.0), gpu.launch("b", 1.0), gpu.launch("c", 1.0)]
    timing = time_in_graph({"a": layers}, calls=4, replays=3)["a"]
    assert timing.ms == pytest.approx(5.0 / 4)
    assert captured == ["run a", "run b", "run c", "run a"]
    assert gpu.log.count("run a") == 3 + 2  # the three warm-up runs are outside the graph


def test_percentiles_lie_among_the_times() -> None:
    """This holds for two times as well, one of which was delayed."""
    for times in ([0.01, 0.9], [0.02, 0.01, 5.0], [1.0] * 4):
        found = timer._timing(times, 0.5)
        assert min(times) <= found.low <= found.high <= max(times)
