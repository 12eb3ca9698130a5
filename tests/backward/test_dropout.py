"""Dropout in the backward kernels: each gradient has the mask that the forward had."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import BackwardKernelConfig, KernelId, Variant
from flashsmith.jit import Target
from flashsmith.reference import dropout_mask
from flashsmith.runtime import load_kernels
from support.backward_kernels import PLAIN, VARIED
from support.dropout import STATE, P, columns_of, counted
from support.gradient_calls import call_of
from support.gradients import assert_near_truth, launch
from support.semantics import packing_of

HEADS, HEADS_KV = 4, 2
CONFIGS = PLAIN | {str(cfg): cfg for cfg in VARIED}
EACH = pytest.mark.parametrize("cfg", CONFIGS.values(), ids=CONFIGS.keys())
BY_FAMILY = pytest.mark.parametrize("cfg", PLAIN.values(), ids=PLAIN.keys())
DROPOUT = Variant(dropout=True)
PACKED = Variant(causal=True, ragged=True, dropout=True)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    of_all = [KernelId(cfg, DROPOUT) for cfg in CONFIGS.values()]
    load_kernels([*of_all, *(KernelId(cfg, PACKED) for cfg in PLAIN.values())], Target.emulator())


class Alike:
    """A call whose weights are all alike, and whose gradients by weights are all 1."""

    def __init__(self, cfg: BackwardKernelConfig, n_q: int, n_k: int) -> None:
        self.cfg, self.n_k, self.d = cfg, n_k, cfg.d_head
        dtype = cfg.dtype.to_torch_dtype()
        self.q, self.do = torch.zeros(2, 2, n_q, HEADS, self.d, dtype=dtype)
        self.k, self.v = torch.zeros(2, 2, n_k, HEADS_KV, self.d, dtype=dtype)
        self.lse = torch.full((2, HEADS, n_q), n_k).log()

    def gradients(self) -> Any:
        return flashsmith.backward(
            self.cfg, self.do, self.q, self.k, self.v, torch.zeros_like(self.do), self.lse,
            softmax_scale=1.0, dropout_p=P, rng_state=STATE,
        )  # fmt: skip

    def count(self, name: str, into: torch.Tensor) -> torch.Tensor:
        """The gradient `name` with each row of a tensor in a column of its own, in several calls:
        (batch, heads, rows of the gradient, rows of the tensor)."""
        rows, parts = into.shape[1], []
        for first in range(0, rows, self.d):
            columns = columns_of(rows, self.d, first, into.dtype)
            into[:] = 0
            into[..., : columns.shape[1]] = columns[:, None]
            found = getattr(self.gradients(), name).transpose(1, 2)
            parts.append(counted(found, self.n_k)[..., : columns.shape[1]])
        into[:] = 0
        return torch.cat(parts, -1)


@EACH
def test_each_gradient_has_the_mask(cfg: BackwardKernelConfig) -> None:
    n_q, n_k = 64 + 37, cfg.B_c + 2 * cfg.B_r // 3
    call, kept = Alike(cfg, n_q, n_k), dropout_mask(STATE, P, (2, HEADS, n_q, n_k)).int()
    of_keys = kept.view(2, HEADS_KV, -1, n_q, n_k).sum(2).mT
    assert torch.equal(call.count("v", call.do), of_keys)
    call.v[..., 0] = call.do[..., 0] = 1  # of every weight the gradient is 1
    assert torch.equal(call.count("q", call.k), kept)
    assert torch.equal(call.count("k", call.q), of_keys)


@BY_FAMILY
def test_packed_sequences_have_the_masks_of_their_numbers(cfg: BackwardKernelConfig) -> None:
    packing = packing_of([70, 0, 35], [90, 20, 30])
    q_shape, k_shape = (105, 4, cfg.d_head), (140, 2, cfg.d_head)
    call = call_of(
        torch.bfloat16, q_shape, k_shape, None, packing, with_dlse=True, causal=True,
        dropout_p=0.25, rng_state=STATE,
    )  # fmt: skip
    assert_near_truth(launch(KernelId(cfg, PACKED), call), call)


@pytest.mark.parametrize("p", [2.0**-15, 0.9])
@BY_FAMILY
def test_every_probability_is_right(cfg: BackwardKernelConfig, p: float) -> None:
    shapes = (1, 70, 2, cfg.d_head), (1, 100, 1, cfg.d_head)
    call = call_of(torch.bfloat16, *shapes, dropout_p=p, rng_state=STATE, with_dlse=True)
    assert_near_truth(launch(KernelId(cfg, DROPOUT), call), call, p)
