"""Dropout in the backward kernels: each gradient has the mask that the forward had."""

from __future__ import annotations

import pytest
import torch

from flashsmith.configs import BackwardKernelConfig, KernelId, Variant
from flashsmith.jit import Target
from flashsmith.reference import dropout_mask
from flashsmith.runtime import load_kernels
from support.backward_kernels import PLAIN, VARIED
from support.dropout import BATCH, HEADS, STATE, P, masks_differ
from support.gradient_calls import call_of
from support.gradients import assert_near_truth, launch
from support.semantics import packing_of

DROPOUT = Variant(dropout=True)
ONE_EACH = {name: cfg for name, cfg in PLAIN.items() if cfg.serves_variant(DROPOUT)}
CONFIGS = ONE_EACH | {str(cfg): cfg for cfg in VARIED if cfg.serves_variant(DROPOUT)}
EACH = pytest.mark.parametrize("cfg", CONFIGS.values(), ids=CONFIGS.keys())
BY_FAMILY = pytest.mark.parametrize("cfg", ONE_EACH.values(), ids=ONE_EACH.keys())
PACKED = Variant(causal=True, varlen=True, dropout=True)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    of_all = [KernelId(cfg, DROPOUT) for cfg in CONFIGS.values()]
    packed = [KernelId(cfg, PACKED) for cfg in ONE_EACH.values()]
    load_kernels([*of_all, *packed], Target.emulator())


@EACH
def test_each_gradient_has_the_mask(cfg: BackwardKernelConfig) -> None:
    n_q, n_k = 64 + 37, cfg.B_c + 2 * cfg.B_r // 3
    kept = dropout_mask(STATE, P, (BATCH, HEADS, n_q, n_k))
    assert masks_differ(cfg, kept) == []


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
