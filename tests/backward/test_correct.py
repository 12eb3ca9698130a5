"""The gradients of every configuration and variant agree with float64."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from flashsmith.configs import KernelId
from flashsmith.jit import Target
from flashsmith.lab.soak import EMULATOR, random_case
from flashsmith.runtime import load_kernels
from support.backward_kernels import KERNELS
from support.gradient_calls import drawn_call
from support.gradients import assert_near_truth, differing, launch, plan_of

RANDOM_CASES = 5  # for each kernel
RERUNS = 2  # of the first cases, with another order of warps and without gaps
SMALL = replace(EMULATOR, max_scores=16_000, max_length=200)
EACH = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.slug)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    load_kernels(KERNELS, Target.emulator())


@EACH
def test_random_calls(kernel: KernelId) -> None:
    """The calls have random lengths and semantics, with and without gaps between rows; the first
    ones run in two orders of warps."""
    rng = Random(kernel.name)
    for i in range(RANDOM_CASES):
        case = random_case(rng, kernel.config, kernel.variant, SMALL)
        call = drawn_call(case)
        assert call.kernel(kernel.config) == kernel
        found = launch(kernel, call, gaps=i % 2 == 1)
        assert_near_truth(found, call, case)
        if i < RERUNS:
            again = launch(kernel, call, seed=i + 1)
            assert not differing(kernel.config, again, found), case


@EACH
def test_the_plan_is_what_the_configuration_says(kernel: KernelId) -> None:
    cfg = kernel.config
    call = drawn_call(random_case(Random(kernel.name), cfg, kernel.variant, SMALL))
    plan = plan_of(kernel, call)
    assert max(each.shared_memory_bytes for each in plan.launches) == cfg.shared_memory_bytes
    assert max(each.threads for each in plan.launches) == cfg.threads_per_block
    assert plan.zeroed_bytes == 0
