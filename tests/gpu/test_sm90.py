"""The sm90 family on the GPU: results against float32, reruns, streams, graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import flashsmith
from flashsmith.configs import ForwardKernelConfig, Sm90ForwardKernelConfig
from flashsmith.jit import build_library
from flashsmith.reference import reference_lse
from flashsmith.runtime import load_library
from flashsmith.runtime.device import target_of
from flashsmith.selection import select_config
from gpu.tensors import assert_correct, random_qkv
from problems import Tensors
from sm90_kernels import CONFIGS, INSTANCES, LAST, PROGRESSION, RULE

pytestmark = pytest.mark.gpu

LONG = 100_000_000  # clock cycles, about 50 ms
QUEUED = [cfg for cfg in (LAST, *RULE) if cfg.workspace_bytes]
BOTH = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
EACH = pytest.mark.parametrize("cfg", CONFIGS, ids=str)
SOME = pytest.mark.parametrize("cfg", [PROGRESSION[0], LAST, *RULE], ids=str)


@pytest.fixture(scope="module", autouse=True)
def _every_kernel(_gpu: None) -> Iterator[None]:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the sm90 family runs on compute capability 9.0 alone")
    target = target_of(torch.device("cuda"))
    load_library(build_library(INSTANCES, target), target)
    yield


def check(
    cfg: ForwardKernelConfig, qkv: Tensors, causal: bool, o: torch.Tensor | None = None
) -> torch.Tensor:
    """Runs the kernel into memory that was NaN; o and lse have to be right."""
    assert isinstance(cfg, Sm90ForwardKernelConfig)
    if o is None:
        o = torch.full_like(qkv[0], torch.nan)
    result, lse = flashsmith.forward(cfg, *qkv, o, causal=causal, return_lse=True)
    assert result is o
    assert_correct(o, qkv, causal, cfg)
    expected = reference_lse(*qkv[:2], causal=causal, compute=torch.float32)
    # FP32 sums of exact exponentials; those that are polynomials have 13 bits.
    error = 2.0**-12 if cfg.fma_exponentials else 2e-5
    torch.testing.assert_close(lse, expected, atol=error, rtol=1e-5)
    return o


@BOTH
@EACH
def test_matches_the_reference(cfg: ForwardKernelConfig, causal: bool) -> None:
    """On slices of wider rows."""
    shape = (2, 500, 3, 3 * cfg.d_head)
    wide = [torch.randn(shape, device="cuda").to(cfg.dtype.to_torch_dtype()) for _ in range(3)]
    q, k, v = (t[..., i * cfg.d_head :][..., : cfg.d_head] for i, t in enumerate(wide))
    check(cfg, (q, k, v), causal, torch.full_like(q, torch.nan))


@pytest.mark.parametrize(
    ("seq_len_q", "seq_len_k", "heads", "heads_kv", "batch"),
    [
        (1, 1, 1, 1, 1),
        (1, 4097, 32, 4, 3),
        (129, 127, 4, 4, 2),
        (333, 1000, 8, 2, 2),
        (1000, 333, 8, 1, 2),
        (2048, 2048, 16, 16, 2),
        (8191, 8193, 3, 1, 1),
    ],
)
@BOTH
@SOME
def test_shapes(
    cfg: ForwardKernelConfig,
    causal: bool,
    seq_len_q: int,
    seq_len_k: int,
    heads: int,
    heads_kv: int,
    batch: int,
) -> None:
    """Ragged lengths, heads that share K and V, one query, few and many tiles."""
    qkv = random_qkv(cfg, seq_len_q, batch, heads, seq_len_k=seq_len_k, heads_kv=heads_kv)
    check(cfg, qkv, causal)


@BOTH
@SOME
def test_packed_input_and_strided_output(cfg: ForwardKernelConfig, causal: bool) -> None:
    """q, k, v as slices of one tensor; o inside a larger one, whose rest stays as it was."""
    dtype = cfg.dtype.to_torch_dtype()
    packed = torch.randn(2, 300, 3, 5, cfg.d_head, device="cuda").to(dtype)
    q, k, v = packed.unbind(2)
    outer = torch.full((2, 300, 7, cfg.d_head + 32), 7.0, dtype=dtype, device="cuda")
    o = outer[:, :, 1:6, 16:-16]
    check(cfg, (q, k, v), causal, o)
    o.fill_(7.0)
    assert (outer == 7.0).all()


@BOTH
@SOME
def test_heads_before_sequence(cfg: ForwardKernelConfig, causal: bool) -> None:
    shape, dtype = (2, 5, 300, cfg.d_head), cfg.dtype.to_torch_dtype()
    q, k, v = (torch.randn(shape, device="cuda").to(dtype).transpose(1, 2) for _ in range(3))
    check(cfg, (q, k, v), causal)


@BOTH
@pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
def test_attention_takes_any_length(d_head: int, causal: bool) -> None:
    shape = (1, 777, 4, d_head)
    q, k, v = (torch.randn(shape, device="cuda").bfloat16() for _ in range(3))
    k, v = k[:, :, :2], v[:, :, :2]
    o, lse = flashsmith.attention(q, k, v, causal=causal, return_lse=True)
    assert_correct(o, (q, k, v), causal)
    assert lse.shape == (1, 4, 777)
    assert isinstance(select_config(q, causal, k=k), Sm90ForwardKernelConfig)


@BOTH
@SOME
def test_reruns_are_bitwise_equal(cfg: ForwardKernelConfig, causal: bool) -> None:
    """250 times, at a size of several waves of tiles."""
    qkv = random_qkv(cfg, seq_len=2000, batch=4, heads=16)
    first = flashsmith.forward(cfg, *qkv, causal=causal)
    o = torch.empty_like(first)
    differ = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(250):
        o.fill_(torch.nan)
        flashsmith.forward(cfg, *qkv, o, causal=causal)
        differ += (o != first).any()
    assert differ.item() == 0


@pytest.mark.parametrize("cfg", QUEUED[:3], ids=str)
def test_streams_have_queues_of_their_own(cfg: ForwardKernelConfig) -> None:
    """Launches on two streams that really run at once: small ones fill half of the GPU each."""
    inputs = [random_qkv(cfg, seq_len=1024, heads=4) for _ in range(2)]
    expected = [flashsmith.forward(cfg, *qkv) for qkv in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    results: list[list[torch.Tensor]] = [[], []]
    torch.cuda.synchronize()
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG)
    for _ in range(50):
        for stream, qkv, found in zip(streams, inputs, results, strict=True):
            with torch.cuda.stream(stream):
                found.append(flashsmith.forward(cfg, *qkv))
    torch.cuda.synchronize()
    for o, found in zip(expected, results, strict=True):
        assert all(torch.equal(other, o) for other in found)


@BOTH
@pytest.mark.parametrize("cfg", [PROGRESSION[0], *QUEUED[:3]], ids=str)
def test_graph_replays_beside_eager_launches(cfg: ForwardKernelConfig, causal: bool) -> None:
    """A graph on another stream, while the stream that captured it launches eagerly."""
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
        torch.cuda._sleep(LONG)
        for _ in range(5):
            graph.replay()
    with torch.cuda.stream(eager):
        torch.cuda._sleep(LONG)
        results = [flashsmith.forward(cfg, q, k, v, causal=causal) for _ in range(50)]
    torch.cuda.synchronize()
    assert torch.equal(o, expected)
    assert all(torch.equal(result, expected) for result in results)


@pytest.mark.parametrize("cfg", [PROGRESSION[0], *QUEUED[:3]], ids=str)
def test_no_launch_disturbs_the_next(cfg: ForwardKernelConfig) -> None:
    """Two inputs in turn, no synchronisation between: each result is that of its own input."""
    inputs = [random_qkv(cfg, seq_len=1000, heads=8) for _ in range(2)]
    expected = [flashsmith.forward(cfg, *qkv) for qkv in inputs]
    results = [flashsmith.forward(cfg, *inputs[i % 2]) for i in range(40)]
    assert all(torch.equal(o, expected[i % 2]) for i, o in enumerate(results))


@BOTH
@SOME
def test_agrees_with_the_emulator(cfg: ForwardKernelConfig, causal: bool) -> None:
    """The same kernel text on the same input; only exponentials and sums round otherwise."""
    qkv = random_qkv(cfg, 200, heads=2, seq_len_k=300, device="cpu")
    emulated = flashsmith.forward(cfg, *qkv, causal=causal)
    o = flashsmith.forward(cfg, *(t.cuda() for t in qkv), causal=causal)
    assert isinstance(o, torch.Tensor) and isinstance(emulated, torch.Tensor)
    one_step = torch.finfo(o.dtype).eps
    torch.testing.assert_close(o.cpu(), emulated, rtol=2 * one_step, atol=2 * one_step)
