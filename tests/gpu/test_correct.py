"""Every kernel on the GPU, against float32."""

from __future__ import annotations

import pytest
import torch

import flashsmith
from conftest import BASE, CONFIGS
from flashsmith.configs import (
    CAUSAL,
    FULL,
    FlashForwardKernelConfig,
    ForwardKernelInstance,
    get_kernel_progression_configs,
)
from flashsmith.jit import Target, build_library
from flashsmith.reference import compare, reference_attention
from flashsmith.runtime import load_library
from gpu.tensors import assert_correct, random_qkv
from problems import TORCH_DTYPES

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("every_kernel")]

BOTH = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
# One of each dtype and d_head, and of the plain and the optimised softmax.
FEW = [min(CONFIGS), max(CONFIGS), BASE, get_kernel_progression_configs()[-1]]
SOME = pytest.mark.parametrize("cfg", FEW, ids=str)


@BOTH
@pytest.mark.parametrize("cfg", CONFIGS, ids=str)
def test_matches_the_reference(cfg: FlashForwardKernelConfig, causal: bool) -> None:
    """On slices of wider rows, into memory that was NaN."""
    shape = (2, 512, 3, 3 * cfg.d_head)
    wide = [torch.randn(shape, device="cuda").to(TORCH_DTYPES[cfg.dtype]) for _ in range(3)]
    q, k, v = (t[..., i * cfg.d_head :][..., : cfg.d_head] for i, t in enumerate(wide))
    o = torch.full_like(q, torch.nan)
    assert flashsmith.forward(cfg, q, k, v, o, causal=causal) is o
    assert_correct(o, (q, k, v), causal, cfg)


@BOTH
@SOME
def test_packed_input_and_strided_output(cfg: FlashForwardKernelConfig, causal: bool) -> None:
    """q, k, v as slices of one tensor; o inside a larger one, whose rest stays as it was."""
    dtype = TORCH_DTYPES[cfg.dtype]
    packed = torch.randn(2, 256, 3, 5, cfg.d_head, device="cuda").to(dtype)
    q, k, v = packed.unbind(2)
    outer = torch.full((2, 256, 7, cfg.d_head + 32), 7.0, dtype=dtype, device="cuda")
    o = outer[:, :, 1:6, 16:-16]
    flashsmith.forward(cfg, q, k, v, o, causal=causal)
    assert_correct(o, (q, k, v), causal, cfg)
    o.fill_(7.0)
    assert (outer == 7.0).all()


@BOTH
@SOME
def test_heads_before_sequence(cfg: FlashForwardKernelConfig, causal: bool) -> None:
    q, k, v = (
        torch.randn(2, 5, 256, cfg.d_head, device="cuda").to(TORCH_DTYPES[cfg.dtype])
        for _ in range(3)
    )
    qkv = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    assert_correct(flashsmith.forward(cfg, *qkv, causal=causal), qkv, causal, cfg)


@pytest.mark.parametrize(
    ("batch", "seq_len", "heads"), [(1, 128, 1), (7, 128, 13), (1, 4096, 2), (3, 1024, 5)]
)
@BOTH
@SOME
def test_shapes(
    cfg: FlashForwardKernelConfig, causal: bool, batch: int, seq_len: int, heads: int
) -> None:
    qkv = random_qkv(cfg, seq_len, batch, heads)
    assert_correct(flashsmith.forward(cfg, *qkv, causal=causal), qkv, causal, cfg)


@pytest.mark.parametrize("seq_len", [64, 128, 192, 1024])
@BOTH
def test_attention(causal: bool, seq_len: int) -> None:
    qkv = random_qkv(BASE, seq_len, batch=2, heads=3)
    assert_correct(flashsmith.attention(*qkv, causal=causal), qkv, causal)


@BOTH
@SOME
def test_agrees_with_the_emulator(cfg: FlashForwardKernelConfig, causal: bool) -> None:
    """The same kernel text on the same input; only exponentials and sums round otherwise."""
    instance = ForwardKernelInstance(cfg, CAUSAL if causal else FULL)
    load_library(build_library([instance], Target.emulator()))
    qkv = random_qkv(cfg, 256, batch=1, heads=2, device="cpu")
    emulated = flashsmith.forward(cfg, *qkv, causal=causal)
    o = flashsmith.forward(cfg, *(t.cuda() for t in qkv), causal=causal)
    low = reference_attention(*qkv, causal=causal, compute=qkv[0].dtype)
    result = compare(o.cpu(), emulated.float(), low)
    assert result.ok, result


@pytest.mark.parametrize("dim", [0, 1, 2], ids=["batch", "sequence", "head"])
@BOTH
def test_offsets_beyond_32_bits(dim: int, causal: bool) -> None:
    """The last index along ``dim`` lies 2^31 elements (2^32 bytes) after the first."""
    shape = [3, 256, 3, 128]
    size, far = 3 * 256 * 3 * 128, 1 << 31
    memory = torch.zeros(far + 8 * size, dtype=torch.float16, device="cuda")
    strides = [256 * 3 * 128, 3 * 128, 128, 1]
    # Each of q, k, v, o lies in the gaps of the others.
    strides[dim] = -(-far // (shape[dim] - 1)) // 8 * 8 + 8
    q, k, v, o = (memory[i * size :].as_strided(shape, strides) for i in range(4))
    for t in (q, k, v):
        t.copy_(torch.randn(shape))
    flashsmith.forward(BASE, q, k, v, o, causal=causal)
    near = (q.contiguous(), k.contiguous(), v.contiguous())
    assert (shape[dim] - 1) * strides[dim] >= far
    assert torch.equal(o, flashsmith.forward(BASE, *near, causal=causal))
    assert_correct(o, near, causal)
