"""Gradients where a bias or a score_mod makes scores as large as float32 allows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import BackwardKernelConfig, KernelId, Variant
from flashsmith.jit import Target
from flashsmith.mods.registry import remember
from flashsmith.mods.trace import trace
from flashsmith.runtime import load_kernels
from support.backward_kernels import PLAIN

N_Q, N_K = 70, 75
TABLE = torch.zeros(N_Q, N_K)  # each call fills it anew
SCORE = remember(trace(lambda s, b, h, q, k: s + TABLE[q, k]).expression)
OF_BIAS, OF_SCORES = Variant(bias=True), Variant(score=SCORE)
MODS = {name: cfg for name, cfg in PLAIN.items() if cfg.serves_variant(OF_SCORES)}
BIASED = {name: cfg for name, cfg in PLAIN.items() if cfg.serves_variant(OF_BIAS)}

MAX = 2.0**20  # the largest |LSE| for which the kernels compute gradients
LARGEST = torch.finfo(torch.bfloat16).max
NEAR = (0.0, 30.0, 1e3)
FAR = (2e6, 1e8, 1e9, 1e10, 2.0**40, 1e30, 1e38, 2.3e38, LARGEST)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    kernels = [KernelId(cfg, OF_SCORES) for cfg in MODS.values()]
    kernels += [KernelId(cfg, OF_BIAS) for cfg in BIASED.values()]
    load_kernels(kernels, Target.emulator())


def rows(sizes: tuple[float, ...], beside: float) -> torch.Tensor:
    """Returns biases (N_Q, N_K). Each row has one value, a third of the rows hide keys 20 to 49,
    and a third have ``beside`` at every other key."""
    signed = [sign * size for size in sizes for sign in (-1, 1)]
    found = torch.tensor([signed[i % len(signed)] for i in range(N_Q)])[:, None].repeat(1, N_K)
    found[1::3, 20:50] = -math.inf
    found[2::3, ::2] = beside
    return found.bfloat16().float()


@dataclass(frozen=True)
class Exact:
    """The gradients in float64, of scores that were summed in float32; rows with an LSE beyond MAX
    have no gradient."""

    lse: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor

    @classmethod
    def of(cls, q: Any, k: Any, v: Any, do: Any, dlse: Any, bias: torch.Tensor) -> Exact:
        scores = (q @ k.T / 8 + bias).double()
        lse, p = scores.logsumexp(-1), scores.softmax(-1)
        q, k, v, do = (t.double() for t in (q, k, v, do))
        o = p @ v
        p = p * (lse.abs() <= MAX)[:, None]
        ds = p * (do @ v.T - (do * o).sum(-1, keepdim=True) + dlse[:, None]) / 8
        return cls(lse, ds @ k, ds.T @ q, p.T @ do, o)


def gradients(cfg: BackwardKernelConfig, bias: torch.Tensor, of_bias: bool) -> tuple[Exact, Any]:
    q, k, v, do = (torch.randn(n, 64).bfloat16() for n in (N_Q, N_K, N_K, N_Q))
    dlse = torch.randn(N_Q)
    exact = Exact.of(*(t.float() for t in (q, k, v, do)), dlse, bias)
    lse = exact.lse.clamp(-LARGEST * math.log(2), LARGEST * math.log(2)).float()
    more: dict[str, Any] = {"score_mod": lambda s, b, h, q, k: s + bias[q, k]}
    if of_bias:
        more = {"bias": bias.bfloat16()[None, None]}
    found = flashsmith.backward(
        cfg, *(t[None, :, None] for t in (do, q, k, v, exact.o.bfloat16())), lse[None, None],
        dlse=dlse[None, None], **more,
    )  # fmt: skip
    return exact, found


def assert_close(found: torch.Tensor, exact: torch.Tensor) -> None:
    assert (found[0, :, 0] - exact).abs().max() < 0.02 * exact.abs().max()


CASES = pytest.mark.parametrize(
    ("cfg", "of_bias"),
    [
        *(pytest.param(cfg, True, id=f"{name}, bias") for name, cfg in BIASED.items()),
        *(pytest.param(cfg, False, id=f"{name}, function") for name, cfg in MODS.items()),
    ],
)


@CASES
def test_rows_of_scores_beyond_what_lse_can_tell_have_no_gradient(
    cfg: BackwardKernelConfig, of_bias: bool
) -> None:
    """The gradients of the other rows are unaffected."""
    bias = rows(NEAR + FAR, 0.0)
    exact, found = gradients(cfg, bias, of_bias)
    far = exact.lse.abs() > MAX
    assert 20 < far.sum() < 50
    assert not found.q[0, far].any()
    for name in ("q", "k", "v"):
        assert_close(getattr(found, name), getattr(exact, name))


@CASES
def test_keys_that_large_scores_hide_have_no_gradient(
    cfg: BackwardKernelConfig, of_bias: bool
) -> None:
    bias = rows((1e4, 1e9, LARGEST), 0.0)
    bias[:] = -bias.abs()
    bias[:, 3] = 1.0
    exact, found = gradients(cfg, bias, of_bias)
    assert exact.lse.abs().max() < 20
    for name in ("q", "k", "v"):
        assert_close(getattr(found, name), getattr(exact, name))


@CASES
def test_weights_are_as_exact_as_their_log_sum_exp(
    cfg: BackwardKernelConfig, of_bias: bool
) -> None:
    bias = rows((1e4, 6e4, 2.5e5, 9e5), -1e9)
    exact, found = gradients(cfg, bias, of_bias)
    assert (exact.lse.abs() < MAX).all()
    allowed = exact.lse.abs() * 2**-22 + 0.02
    off = (found.q[0, :, 0] - exact.q).norm(dim=-1) / exact.q.norm(dim=-1)
    assert (off < allowed).all(), (off / allowed).tolist()
