"""The kernels' results on the emulator, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from conftest import BASE, CAUSAL_CONFIGS, CONFIGS, INSTANCES, KNOBS
from flashsmith.configs import CAUSAL, FULL, ForwardKernelInstance, get_kernel_progression_configs
from flashsmith.reference import compare, reference_attention
from flashsmith.runtime import Kernel
from problems import assert_correct, random_qkv, run

Emulated = Callable[[ForwardKernelInstance], Kernel]

LAST = get_kernel_progression_configs(False)[-1]  # optimized softmax, Q in registers
REPRESENTATIVE = [
    ForwardKernelInstance(cfg, variant) for cfg in (BASE, LAST) for variant in (FULL, CAUSAL)
]


def test_the_set_is_complete() -> None:
    assert len(set(CONFIGS)) == 165
    assert {i.config for i in INSTANCES if i.variant == FULL} == {*CONFIGS, *KNOBS.values()}
    assert {(c.B_r, c.B_c, c.n_warps) for c in CAUSAL_CONFIGS} >= {
        (128, 128, 8), (128, 64, 8), (128, 32, 8), (64, 128, 4), (64, 32, 4), (128, 64, 4)
    }  # fmt: skip


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i.slug)
def test_matches_the_reference(instance: ForwardKernelInstance, emulated: Emulated) -> None:
    qkv = random_qkv(instance.config)
    assert_correct(run(emulated(instance), qkv), qkv, instance)


@pytest.mark.parametrize("instance", REPRESENTATIVE, ids=lambda i: i.slug)
def test_batches_and_heads(instance: ForwardKernelInstance, emulated: Emulated) -> None:
    qkv = random_qkv(instance.config, seq_len=128, batch=3, heads=2)
    assert_correct(run(emulated(instance), qkv), qkv, instance)


@pytest.mark.parametrize("instance", REPRESENTATIVE, ids=lambda i: i.slug)
def test_packed_input_and_strided_output(
    instance: ForwardKernelInstance, emulated: Emulated
) -> None:
    """q, k, v as slices of one tensor; o inside a larger one, whose rest stays as it was."""
    packed = torch.randn(2, 128, 3, 2, 128).half()
    q, k, v = packed.unbind(2)
    outer = torch.full((2, 128, 4, 160), 7.0).half()
    o = outer[:, :, 1:3, 16:144]
    emulated(instance)(q, k, v, o, 128**-0.5)
    assert_correct(o, (q, k, v), instance)
    o.fill_(7.0)
    assert (outer == 7.0).all()


@pytest.mark.parametrize("instance", REPRESENTATIVE, ids=lambda i: i.slug)
def test_heads_before_sequence(instance: ForwardKernelInstance, emulated: Emulated) -> None:
    q, k, v = (torch.randn(2, 3, 128, 128).half().transpose(1, 2) for _ in range(3))
    assert_correct(run(emulated(instance), (q, k, v)), (q, k, v), instance)


@pytest.mark.parametrize("scale", [0.01, 1.0])
@pytest.mark.parametrize("instance", REPRESENTATIVE, ids=lambda i: i.slug)
def test_softmax_scale(instance: ForwardKernelInstance, scale: float, emulated: Emulated) -> None:
    qkv = random_qkv(instance.config)
    assert_correct(run(emulated(instance), qkv, scale), qkv, instance, scale)


@pytest.mark.parametrize("growth", [0.5, 3.0, 12.0])
@pytest.mark.parametrize("instance", REPRESENTATIVE, ids=lambda i: i.slug)
def test_maximum_that_grows(
    instance: ForwardKernelInstance, growth: float, emulated: Emulated
) -> None:
    """Blocks are visited backwards; earlier keys get larger, by less and by more than the threshold
    under which the optimised softmax leaves its old maximum in place."""
    q, k, v = random_qkv(instance.config)
    q[..., 0], k[..., 0] = 8.0, torch.linspace(4 * growth, 0, 256).half()[None, :, None]
    assert_correct(run(emulated(instance), (q, k, v)), (q, k, v), instance)


@pytest.mark.parametrize("instance", REPRESENTATIVE, ids=lambda i: i.slug)
def test_large_logits_pick_one_key(instance: ForwardKernelInstance, emulated: Emulated) -> None:
    q, k, v = random_qkv(instance.config)
    assert_correct(run(emulated(instance), (q * 30, k * 30, v)), (q * 30, k * 30, v), instance)


@pytest.mark.parametrize("instance", REPRESENTATIVE, ids=lambda i: i.slug)
def test_nan_stays_in_the_rows_that_see_it(
    instance: ForwardKernelInstance, emulated: Emulated
) -> None:
    q, k, v = random_qkv(instance.config)
    q[0, 70] = torch.nan
    o = run(emulated(instance), (q, k, v))
    rows = o.isnan().any(-1).flatten().nonzero().flatten().tolist()
    assert rows == [70]


def test_causal_ignores_the_future(emulated: Emulated) -> None:
    """Bitwise: what comes after a row does not reach it."""
    kernel = emulated(ForwardKernelInstance(LAST, CAUSAL))
    q, k, v = random_qkv(LAST)
    o = run(kernel, (q, k, v))
    k[:, 100:], v[:, 100:] = 50.0, -50.0
    assert torch.equal(run(kernel, (q, k, v))[:, :100], o[:, :100])


def test_comparison_sees_a_wrong_element() -> None:
    q, k, v = random_qkv(BASE)
    exact = reference_attention(q, k, v)
    low = reference_attention(q, k, v, compute=torch.float16)
    o = exact.half()
    assert compare(o, exact, low).ok
    for wrong in (torch.nan, torch.inf, float(o[0, 3, 0, 5]) + 0.05):
        bad = o.clone()
        bad[0, 3, 0, 5] = wrong
        result = compare(bad, exact, low)
        assert not result.ok and "(0, 3, 0, 5)" in result.worst
