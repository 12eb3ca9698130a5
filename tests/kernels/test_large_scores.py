"""Scores as large as float32 allows, made by a bias or by a score_mod."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import (
    AttentionKernelConfig,
    KernelId,
    Variant,
    parse_kernel_name_into_config,
)
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.dtype import DType
from flashsmith.jit import Target
from flashsmith.mods.registry import remember
from flashsmith.mods.trace import trace
from flashsmith.runtime import load_kernels

FORWARD = {
    name: parse_kernel_name_into_config(config)
    for name, config in {
        "sm80": "(BF16, 64, 64, 32, 4): async+load_0_0_0_tiles+opt_softmax",
        "sm80, scaled first": "(BF16, 64, 64, 32, 4): async+load_0_0_0_tiles",
        "sm90": "(BF16, 64, 64, 32, 1): wgmma+stages_2+overlap+persistent+queue+lazy_4+tma_store",
        "sm90, every maximum": "(BF16, 64, 64, 32, 1): wgmma+stages_2+overlap",
    }.items()
}
DECODE = {
    "decode": parse_kernel_name_into_config("(BF16, 64, 16, 32, 4): decode+stages_2+blocks_1"),
    "decode, sm90": DECODE.families[1].heuristic(DecodeWorkload(DType.BF16, 64, 64)),
}
EACH = pytest.mark.parametrize("cfg", FORWARD.values(), ids=FORWARD.keys())
LARGEST = torch.finfo(torch.bfloat16).max
BEYOND = torch.finfo(torch.float32).max / math.log2(math.e)  # larger scores count as this
SIZES = (1e4, 1e9, 1e10, 2.0**40, 1e30, 2.3e38, LARGEST)
N_K = 75


def rows() -> torch.Tensor:
    """Returns biases (rows, N_K): each size stands in all keys, in all that are not hidden, in half
    of them, or in one."""
    found = []
    for value in (sign * size for size, sign in product(SIZES, (-1, 1))):
        every = torch.full((N_K,), value)
        some, half, one = every.clone(), torch.zeros(N_K), torch.zeros(N_K)
        some[5:60] = -math.inf
        half[::2], one[40] = value, value
        found += [every, some, half, one, half.neg() + every.where(half == 0, 0)]
    return torch.stack(found).bfloat16().float()


BIAS = rows()
N_Q = len(BIAS)
SCORE = remember(trace(lambda s, b, h, q, k: s + BIAS[q, k]).expression)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    kernels = [KernelId(cfg, Variant(bias=True)) for cfg in FORWARD.values()]
    kernels += [KernelId(cfg, Variant(score=SCORE)) for cfg in (FORWARD | DECODE).values()]
    load_kernels(kernels, Target.emulator())


def tensors() -> list[torch.Tensor]:
    return [torch.randn(1, n, 1, 64).bfloat16() for n in (N_Q, N_K, N_K)]


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns o and LSE in float64, of scores that were summed in float32."""
    scores = (q[0, :, 0].float() @ k[0, :, 0].float().T / 8 + BIAS).double()
    return scores.softmax(-1) @ v[0, :, 0].double(), scores.logsumexp(-1)


def assert_right(found: Any, qkv: list[torch.Tensor]) -> None:
    (o, lse), (right_o, right_lse) = found, expected(*qkv)
    off = (o[0, :, 0] - right_o).abs().amax(-1)
    assert off.max() < 0.02, (off > 0.02).nonzero().flatten().tolist()
    torch.testing.assert_close(
        lse[0, 0].double(), right_lse.clamp(-BEYOND, BEYOND), rtol=1e-6, atol=1e-3
    )


@EACH
def test_biases_of_any_size(cfg: AttentionKernelConfig) -> None:
    qkv = tensors()
    bias = BIAS.bfloat16()[None, None]
    assert_right(flashsmith.attention(*qkv, bias=bias, config=cfg, return_lse=True), qkv)


@pytest.mark.parametrize("cfg", (FORWARD | DECODE).values(), ids=FORWARD | DECODE)
def test_scores_of_any_size(cfg: AttentionKernelConfig) -> None:
    qkv = tensors()
    found = flashsmith.attention(
        *qkv, score_mod=lambda s, b, h, q, k: s + BIAS[q, k], config=cfg, return_lse=True
    )
    assert_right(found, qkv)
