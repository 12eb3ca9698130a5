"""Exponentials that are polynomials: exponents far below zero (maxima that move and scales are in
test_sm90_forward)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flashsmith.configs import FORWARD_VARIANTS, ForwardKernelInstance
from flashsmith.runtime import Kernel
from problems import assert_correct, random_qkv, run
from sm90_kernels import VARIED

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
    instance: ForwardKernelInstance, factor: float, emulated_sm90: Emulated
) -> None:
    """2^-126 and below is nothing: an exponent that wrapped round would be a large number."""
    q, k, v = random_qkv(instance.config, 300)
    assert_correct(run(emulated_sm90(instance), (q * factor, k, v)), (q * factor, k, v), instance)
