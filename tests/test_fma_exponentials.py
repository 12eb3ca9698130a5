"""Exponentials that are polynomials: exponents far below zero, and maxima that move."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flashsmith.configs import FORWARD_VARIANTS, ForwardKernelInstance
from flashsmith.runtime import Kernel
from hopper_kernels import VARIED
from problems import assert_correct, random_qkv, run

Emulated = Callable[[ForwardKernelInstance], Kernel]

INSTANCES = [
    ForwardKernelInstance(cfg, variant)
    for cfg in VARIED
    if cfg.fma_exponentials
    for variant in FORWARD_VARIANTS
]
EACH = pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i.slug)


def test_some_and_all_exponentials() -> None:
    assert {i.config.fma_exponentials for i in INSTANCES} == {4, 16}


@pytest.mark.parametrize("factor", [6, 30, 100])
@EACH
def test_exponents_far_below_zero(
    instance: ForwardKernelInstance, factor: float, emulated_hopper: Emulated
) -> None:
    """2^-126 and below is nothing: an exponent that wrapped round would be a large number."""
    q, k, v = random_qkv(instance.config, 300)
    assert_correct(run(emulated_hopper(instance), (q * factor, k, v)), (q * factor, k, v), instance)


@pytest.mark.parametrize("order", [1, -1], ids=["grows", "shrinks"])
@pytest.mark.parametrize("growth", [0.5, 3.0, 12.0, 40.0])
@EACH
def test_maximum_that_moves(
    instance: ForwardKernelInstance, growth: float, order: int, emulated_hopper: Emulated
) -> None:
    q, k, v = random_qkv(instance.config)
    ramp = torch.linspace(0, 4 * growth, 256).to(k.dtype)
    q[..., 0], k[..., 0] = 8.0, (ramp if order == 1 else ramp.flip(0))[None, :, None]
    assert_correct(run(emulated_hopper(instance), (q, k, v)), (q, k, v), instance)


@pytest.mark.parametrize("scale", [0.01, 1.0])
@EACH
def test_softmax_scale(
    instance: ForwardKernelInstance, scale: float, emulated_hopper: Emulated
) -> None:
    qkv = random_qkv(instance.config)
    assert_correct(run(emulated_hopper(instance), qkv, scale), qkv, instance, scale)
