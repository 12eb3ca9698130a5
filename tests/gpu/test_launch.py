"""Launches: stream, device, graph and timing, and the same result every time."""

from __future__ import annotations

import statistics

import pytest
import torch

import flashsmith
from flashsmith.configs import ForwardKernelConfig
from flashsmith.reference import reference_attention
from support import sm90_kernels
from support.gpu_tensors import assert_correct, random_qkv
from support.sm80_kernels import BASE, PROGRESSION
from support.undisturbed import once_undisturbed

pytestmark = pytest.mark.gpu

QUEUED = [cfg for cfg in (sm90_kernels.LAST, *sm90_kernels.HEURISTIC) if cfg.dynamic_queue]
# LAUNCHED has each step of sm80, and kernels of sm90 with and without a queue.
LAUNCHED = [*PROGRESSION, sm90_kernels.PROGRESSION[0], *QUEUED[:3]]
BOTH = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
EACH = pytest.mark.parametrize("cfg", LAUNCHED, ids=str)
LONG = 1_000_000_000  # clock cycles, about half a second


def test_runs_on_the_current_stream() -> None:
    """The kernel waits for a long kernel and a copy into q on the same stream, whatever other
    streams do."""
    qkv = random_qkv(BASE)
    q = torch.full_like(qkv[0], torch.nan)
    o = torch.full_like(q, torch.nan)
    # The first use of anything may wait for the device; the later uses only launch.
    flashsmith.forward(BASE, *qkv)
    torch.cuda._sleep(1)
    assert o.isnan().all().item()
    torch.cuda.synchronize()

    stream, done = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        q.copy_(qkv[0])
        flashsmith.forward(BASE, q, *qkv[1:], o)
        done.record()
    was_done = done.query()
    torch.cuda.default_stream().synchronize()
    untouched = o.isnan().all().item()
    still_waiting = not done.query()
    done.synchronize()
    assert not was_done, "forward waited for its stream"
    assert untouched and still_waiting, "forward ran on another stream"
    assert_correct(o, qkv)


def test_the_default_stream_is_not_blocked_by_others() -> None:
    """The default stream's work ends while a long kernel runs on another stream."""
    qkv = random_qkv(BASE)
    o = flashsmith.forward(BASE, *qkv)
    o.fill_(torch.nan)
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    stream, busy = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        busy.record()
    flashsmith.forward(BASE, *qkv, o)
    torch.cuda.default_stream().synchronize()
    assert not busy.query(), "forward waited for another stream"
    assert_correct(o, qkv)


def test_the_current_device_stays() -> None:
    before = torch.cuda.current_device()
    flashsmith.forward(BASE, *random_qkv(BASE))
    assert torch.cuda.current_device() == before


def test_launches_on_the_device_of_the_tensors() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    last = torch.cuda.device_count() - 1
    qkv = random_qkv(BASE, device=f"cuda:{last}")
    with torch.cuda.device(0):
        o = flashsmith.forward(BASE, *qkv)
        assert torch.cuda.current_device() == 0
    assert_correct(o, qkv)
    q, k, v = random_qkv(BASE, device="cuda:0")
    with pytest.raises(ValueError, match="k is on another device than q"):
        flashsmith.forward(BASE, q, qkv[1], v)
    assert_correct(flashsmith.forward(BASE, q, k, v), (q, k, v))


@pytest.mark.parametrize("name", ["k", "v", "o"])
def test_a_tensor_in_cpu_memory_is_refused(name: str) -> None:
    q, k, v = random_qkv(BASE)
    tensors = {"q": q, "k": k, "v": v, "o": torch.empty_like(q)}
    with pytest.raises(ValueError, match=f"^{name} is on another device than q"):
        flashsmith.forward(BASE, **tensors | {name: tensors[name].cpu()})
    assert_correct(flashsmith.forward(BASE, q, k, v), (q, k, v))


@BOTH
@EACH
def test_graph_capture_and_replay(cfg: ForwardKernelConfig, causal: bool) -> None:
    q, k, v = random_qkv(cfg, heads=2)
    o = torch.full_like(q, torch.nan)
    flashsmith.forward(cfg, q, k, v, causal=causal)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flashsmith.forward(cfg, q, k, v, o, causal=causal)
    assert o.isnan().all(), "capture ran the kernel"
    for _ in range(3):
        for t in (q, k, v):
            t.normal_()
        o.fill_(torch.nan)
        graph.replay()
        assert_correct(o, (q, k, v), causal)


@BOTH
@EACH
def test_reruns_are_bitwise_equal(cfg: ForwardKernelConfig, causal: bool) -> None:
    """The kernel runs 250 times, with several waves of thread blocks: 2048 blocks."""
    qkv = random_qkv(cfg, seq_len=2048, batch=4, heads=16)
    first = flashsmith.forward(cfg, *qkv, causal=causal)
    o = torch.empty_like(first)
    differ = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(250):
        o.fill_(torch.nan)
        flashsmith.forward(cfg, *qkv, o, causal=causal)
        differ += (o != first).any()
    assert differ.item() == 0


@EACH
def test_no_launch_disturbs_the_next(cfg: ForwardKernelConfig) -> None:
    """Two inputs alternate without synchronisation, and each result is that of its own input."""
    inputs = [random_qkv(cfg, seq_len=1000, heads=8) for _ in range(2)]
    expected = [flashsmith.forward(cfg, *qkv) for qkv in inputs]
    results = [flashsmith.forward(cfg, *inputs[i % 2]) for i in range(40)]
    assert all(torch.equal(o, expected[i % 2]) for i, o in enumerate(results))


@pytest.mark.parametrize("cfg", QUEUED[:3], ids=str)
def test_streams_have_queues_of_their_own(cfg: ForwardKernelConfig) -> None:
    """Launches on two streams run at the same time: each is small and fills half of the GPU."""
    inputs = [random_qkv(cfg, seq_len=1024, heads=4) for _ in range(2)]
    expected = [flashsmith.forward(cfg, *qkv) for qkv in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    results: list[list[torch.Tensor]] = [[], []]
    torch.cuda.synchronize()
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG // 10)
    for _ in range(50):
        for stream, qkv, found in zip(streams, inputs, results, strict=True):
            with torch.cuda.stream(stream):
                found.append(flashsmith.forward(cfg, *qkv))
    torch.cuda.synchronize()
    for o, found in zip(expected, results, strict=True):
        assert all(torch.equal(other, o) for other in found)


@BOTH
@EACH
def test_graph_replays_beside_eager_launches(cfg: ForwardKernelConfig, causal: bool) -> None:
    """The graph runs on another stream, while the stream that captured it launches eagerly."""
    q, k, v = random_qkv(cfg, seq_len=1024, heads=4)
    expected = flashsmith.forward(cfg, q, k, v, causal=causal)
    eager, replaying = torch.cuda.Stream(), torch.cuda.Stream()
    graph, o = torch.cuda.CUDAGraph(), torch.full_like(q, torch.nan)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=eager):
        for _ in range(10):
            flashsmith.forward(cfg, q, k, v, o, causal=causal)
    assert o.isnan().all(), "capture ran the kernel"
    with torch.cuda.stream(replaying):
        torch.cuda._sleep(LONG // 10)
        for _ in range(5):
            graph.replay()
    with torch.cuda.stream(eager):
        torch.cuda._sleep(LONG // 10)
        results = [flashsmith.forward(cfg, q, k, v, causal=causal) for _ in range(50)]
    torch.cuda.synchronize()
    assert torch.equal(o, expected)
    assert all(torch.equal(result, expected) for result in results)


@pytest.mark.parametrize("cfg", [PROGRESSION[0], PROGRESSION[-1]], ids=str)
def test_benchmark_agrees_with_events_around_the_call(cfg: ForwardKernelConfig) -> None:
    qkv = random_qkv(cfg, seq_len=4096, batch=4, heads=16)
    o = torch.empty_like(qkv[0])

    def ours() -> float:
        result, milliseconds = flashsmith.forward(cfg, *qkv, o, benchmark=True)
        assert result is o
        return milliseconds

    def by_torch() -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(1_000_000)  # keeps the host's cost of a launch out of the time
        start.record()
        flashsmith.forward(cfg, *qkv, o)
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop)

    def check() -> None:
        pairs = [(ours(), by_torch()) for _ in range(20)]
        measured, expected = (statistics.median(times) for times in zip(*pairs, strict=True))
        assert measured == pytest.approx(expected, rel=0.1)
        # No GPU reaches a thousand TFLOP/s with mma.sync, and none is below 1.
        assert 1 < cfg.attn_flop(4, 16, 4096) / measured / 1e9 < 1000

    once_undisturbed(check)


def test_benchmark_waits_for_the_result() -> None:
    qkv = random_qkv(BASE)
    stream = torch.cuda.Stream()
    flashsmith.forward(BASE, *qkv)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG // 10)
        o, milliseconds = flashsmith.forward(BASE, *qkv, benchmark=True)
        assert stream.query(), "returned before the kernel was done"
    assert 0 < milliseconds < 40, "the time includes what ran before on the stream"
    assert_correct(o, qkv)


def test_a_reference_sees_a_wrong_head() -> None:
    """The check of this folder notices a result whose heads are exchanged."""
    qkv = random_qkv(BASE, heads=2)
    wrong = reference_attention(*qkv, compute=torch.float32).flip(2).half()
    with pytest.raises(AssertionError):
        assert_correct(wrong, qkv)
