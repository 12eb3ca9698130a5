"""Every kernel of every family on a GPU, against float32: shapes, layouts, offsets."""

from __future__ import annotations

import pytest
import torch

import flashsmith
from flashsmith.configs import ForwardKernelConfig
from flashsmith.configs.workload import D_HEADS
from flashsmith.reference import reference_lse
from support import sm80_kernels, sm90_kernels
from support.gpu_tensors import assert_correct, random_qkv
from support.kernels import SAMPLES
from support.problems import Tensors

pytestmark = pytest.mark.gpu

BOTH = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
ALL = dict.fromkeys(
    [*sm80_kernels.DECLARED, *(c for s in SAMPLES for c in s.configs if not c.fp8_tensors)]
)
EACH = pytest.mark.parametrize("cfg", ALL, ids=str)
PLAINEST_AND_BEST = [
    cfg for kernels in (sm80_kernels, sm90_kernels)
    for cfg in (kernels.PROGRESSION[0], kernels.LAST, *kernels.HEURISTIC)
]  # fmt: skip
SOME = pytest.mark.parametrize("cfg", dict.fromkeys(PLAINEST_AND_BEST), ids=str)


def check(
    cfg: ForwardKernelConfig, qkv: Tensors, causal: bool, o: torch.Tensor | None = None
) -> torch.Tensor:
    """Runs the kernel into memory that holds NaN, and checks o and lse."""
    if o is None:
        o = torch.full_like(qkv[0], torch.nan)
    result, lse = flashsmith.forward(cfg, *qkv, o, causal=causal, return_lse=True)
    assert result is o
    assert_correct(o, qkv, causal, cfg)
    expected = reference_lse(*qkv[:2], causal=causal, compute=torch.float32)
    # The sums are FP32 and the exponentials exact, unless they are polynomials, which have 13 bits.
    error = 2.0**-12 if getattr(cfg, "fma_exponentials", 0) else 2e-5
    torch.testing.assert_close(lse, expected, atol=error, rtol=1e-5)
    return o


@BOTH
@EACH
def test_matches_the_reference(cfg: ForwardKernelConfig, causal: bool) -> None:
    """The tensors are slices of wider rows."""
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
    """The cases have odd lengths, GQA, one query, few and many tiles."""
    qkv = random_qkv(cfg, seq_len_q, batch, heads, seq_len_k=seq_len_k, heads_kv=heads_kv)
    check(cfg, qkv, causal)


@BOTH
@SOME
def test_packed_input_and_strided_output(cfg: ForwardKernelConfig, causal: bool) -> None:
    """q, k, v are slices of one tensor; o lies inside a larger one, whose other elements stay as
    they were."""
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
@pytest.mark.parametrize("d_head", D_HEADS)
def test_attention_takes_any_length(d_head: int, causal: bool) -> None:
    shape = (1, 777, 4, d_head)
    q, k, v = (torch.randn(shape, device="cuda").bfloat16() for _ in range(3))
    k, v = k[:, :, :2], v[:, :, :2]
    o, lse = flashsmith.attention(q, k, v, causal=causal, return_lse=True)
    assert_correct(o, (q, k, v), causal)
    assert lse.shape == (1, 4, 777)


@pytest.mark.parametrize("cfg", [sm80_kernels.LAST, sm90_kernels.LAST], ids=str)
def test_memory_that_is_used_again(cfg: ForwardKernelConfig) -> None:
    """The allocator gives the same addresses to other shapes and layouts, call after call."""
    addresses = set()
    for step in range(60):
        length, heads = 64 + 37 * (step % 5), 1 + step % 3
        shape = (2, heads, length, cfg.d_head) if step % 2 else (2, length, heads, cfg.d_head)
        qkv = [torch.randn(shape, device="cuda").to(cfg.dtype.to_torch_dtype()) for _ in range(3)]
        q, k, v = (t.transpose(1, 2) if step % 2 else t for t in qkv)
        addresses.add(q.data_ptr())
        check(cfg, (q, k, v), causal=step % 4 == 0)
    assert len(addresses) < 60


@BOTH
@SOME
def test_agrees_with_the_emulator(cfg: ForwardKernelConfig, causal: bool) -> None:
    """The kernel text and the input are the same; only exponentials and sums round differently."""
    qkv = random_qkv(cfg, 200, heads=2, seq_len_k=300, device="cpu")
    emulated = flashsmith.forward(cfg, *qkv, causal=causal)
    o = flashsmith.forward(cfg, *(t.cuda() for t in qkv), causal=causal)
    one_step = torch.finfo(o.dtype).eps
    torch.testing.assert_close(o.cpu(), emulated, rtol=2 * one_step, atol=2 * one_step)


@pytest.mark.parametrize("dim", [0, 1, 2], ids=["batch", "sequence", "head"])
@BOTH
@pytest.mark.parametrize("cfg", [sm80_kernels.BASE, sm90_kernels.LAST], ids=str)
def test_offsets_beyond_32_bits(cfg: ForwardKernelConfig, causal: bool, dim: int) -> None:
    """The last index along ``dim`` lies 2^31 elements (2^32 bytes) behind the first."""
    shape = [3, 256, 3, 128]
    size, far = 3 * 256 * 3 * 128, 1 << 31
    dtype = cfg.dtype.to_torch_dtype()
    memory = torch.zeros(far + 8 * size, dtype=dtype, device="cuda")
    strides = [256 * 3 * 128, 3 * 128, 128, 1]
    # Each of q, k, v, o lies in the gaps of the others.
    strides[dim] = -(-far // (shape[dim] - 1)) // 8 * 8 + 8
    q, k, v, o = (memory[i * size :].as_strided(shape, strides) for i in range(4))
    for t in (q, k, v):
        t.copy_(torch.randn(shape))
    flashsmith.forward(cfg, q, k, v, o, causal=causal)
    near = (q.contiguous(), k.contiguous(), v.contiguous())
    assert (shape[dim] - 1) * strides[dim] >= far
    assert torch.equal(o, flashsmith.forward(cfg, *near, causal=causal))
    assert_correct(o, near, causal)
