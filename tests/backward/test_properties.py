"""Properties of the gradients of attention that need no reference, and finite differences."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import flashsmith
from flashsmith.configs import VARIANTS, BackwardKernelConfig, KernelId
from flashsmith.jit import Target
from flashsmith.reference import ReferenceGradients
from flashsmith.runtime import load_kernels
from support.backward_kernels import OF_PLAIN, PLAIN
from support.gradient_calls import Call, call_of, variant_call
from support.gradients import differing, launch
from support.semantics import SM80 as FORWARD

BY_FAMILY = pytest.mark.parametrize("cfg", PLAIN.values(), ids=PLAIN.keys())
# The kernels of the forward's d_head.
DERIVED = [kernel for kernel in OF_PLAIN if kernel.config.d_head == FORWARD.d_head]
EACH = pytest.mark.parametrize("kernel", DERIVED, ids=lambda kernel: kernel.slug)
BF16 = torch.bfloat16
EPS = 2.0**-8  # the largest relative error of rounding to BF16
STEP = 2.0**-6


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    forward = [
        KernelId(FORWARD, variant) for variant in {*VARIANTS, *(k.variant for k in OF_PLAIN)}
    ]
    plain = [KernelId(cfg) for cfg in PLAIN.values()]
    load_kernels([*plain, *DERIVED, *forward], Target.emulator())


def plain_call(cfg: BackwardKernelConfig) -> Call:
    """Returns a call without GQA, whose values are multiples of 2^-4, so that sums of a few are
    exact."""
    q_shape, k_shape = (2, 90, 2, cfg.d_head), (2, 210, 2, cfg.d_head)
    return call_of(BF16, q_shape, k_shape, step=2.0**-4)


def near(found: torch.Tensor, expected: torch.Tensor, of: torch.Tensor) -> None:
    """Checks that two results differ by at most a few roundings of the largest element of
    ``of``."""
    difference = (found.double() - expected.double()).abs().max().item()
    assert difference <= 4 * EPS * of.double().abs().max().item()


@BY_FAMILY
def test_weights_sum_to_one(cfg: BackwardKernelConfig) -> None:
    """A shift of all keys changes no weight, and a shift of all values shifts o by as much."""
    call = plain_call(cfg)
    found = launch(KernelId(cfg), call)
    near(found.k.double().sum(1), torch.zeros(2, 2, cfg.d_head), found.k.norm(dim=1))
    near(found.v.double().sum(1), call.do.double().sum(1), found.v.norm(dim=1))


@BY_FAMILY
def test_what_is_added_to_all_keys_changes_nothing_for_queries(
    cfg: BackwardKernelConfig,
) -> None:
    torch.manual_seed(1)
    call = plain_call(cfg)
    torch.manual_seed(1)
    moved = plain_call(cfg)
    moved.k.add_(0.5)
    lse = call.lse + 0.5 * call.scale * call.q.float().sum(-1).transpose(1, 2)
    moved = replace(moved, lse=lse)
    found = launch(KernelId(cfg), moved)
    expected = launch(KernelId(cfg), call)
    near(found.q, expected.q, expected.q)
    near(found.v, expected.v, expected.v)


@BY_FAMILY
def test_they_are_linear_in_the_gradient_of_o(cfg: BackwardKernelConfig) -> None:
    call, kernel = plain_call(cfg), KernelId(cfg)
    one, two = launch(kernel, call), launch(kernel, replace(call, do=2 * call.do))
    twice = ReferenceGradients(2 * one.q, 2 * one.k, 2 * one.v)
    assert not differing(cfg, two, twice)
    near(two.q, twice.q, twice.q)
    other = plain_call(cfg).do
    by_other = launch(kernel, replace(call, do=other))
    by_both = launch(kernel, replace(call, do=call.do + other))
    for name in ("q", "k", "v"):
        parts = [getattr(each, name).double() for each in (one, by_other)]
        near(getattr(by_both, name), sum(parts), torch.stack(parts))


@BY_FAMILY
def test_keys_in_another_order_have_the_same_gradients(cfg: BackwardKernelConfig) -> None:
    call, order = plain_call(cfg), torch.randperm(210)
    found = launch(KernelId(cfg), replace(call, k=call.k[:, order], v=call.v[:, order]))
    expected = launch(KernelId(cfg), call)
    assert torch.equal(found.k, expected.k[:, order])
    assert torch.equal(found.v, expected.v[:, order])
    near(found.q, expected.q, expected.q)


@BY_FAMILY
def test_halves_of_the_keys_make_up_the_whole_if_they_know_its_results(
    cfg: BackwardKernelConfig,
) -> None:
    """Context parallelism relies on this. The first half ends one row behind the boundary of a
    tile."""
    call, kernel = plain_call(cfg), KernelId(cfg)
    whole = launch(kernel, call)
    by_queries = torch.zeros_like(whole.q, dtype=torch.float64)
    for part in (slice(0, 65), slice(65, None)):
        found = launch(kernel, replace(call, k=call.k[:, part], v=call.v[:, part]))
        assert torch.equal(found.k, whole.k[:, part])
        assert torch.equal(found.v, whole.v[:, part])
        by_queries += found.q.double()
    near(by_queries, whole.q, whole.q)


@BY_FAMILY
def test_samples_and_heads_have_the_same_bits_alone_and_among_others(
    cfg: BackwardKernelConfig,
) -> None:
    call, kernel = (
        call_of(BF16, (2, 90, 4, cfg.d_head), (2, 70, 2, cfg.d_head), with_dlse=True),
        KernelId(cfg),
    )
    whole = launch(kernel, call)
    sample, heads, shared = slice(1, 2), slice(2, 4), slice(1, 2)
    of_q = {n: getattr(call, n)[sample, :, heads] for n in ("q", "o", "do")}
    of_k = {n: getattr(call, n)[sample, :, shared] for n in ("k", "v")}
    of_lse = {n: getattr(call, n)[sample, heads].contiguous() for n in ("lse", "dlse")}
    alone = launch(kernel, replace(call, **of_q, **of_k, **of_lse))
    part = ReferenceGradients(
        whole.q[sample, :, heads], whole.k[sample, :, shared], whole.v[sample, :, shared]
    )
    assert not differing(cfg, alone, part)
    near(alone.q, part.q, part.q)


# ---- derivatives ----


def loss(call: Call, moved: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Returns the loss of the forward with the tensors of ``moved``, and the largest error that the
    rounding of o can cause."""
    given = {"q": call.q, "k": call.k, "v": call.v, **call.keywords} | moved
    o, lse = flashsmith.forward(FORWARD, **given, return_lse=True)  # type: ignore[misc]
    by_lse = torch.where(lse.isfinite(), lse, 0).double() * call.dlse
    by_o = o.double() * call.do
    return (by_o.nansum() + by_lse.nansum()).item(), 2 * EPS * by_o.nan_to_num().norm().item()


@EACH
def test_they_are_the_limits_of_differences(kernel: KernelId) -> None:
    """A step along the signs of a gradient changes the loss by the sum of the gradient's absolute
    values."""
    call = variant_call(kernel.variant)
    assert call.kernel(kernel.config) == kernel
    found: ReferenceGradients = launch(kernel, call)
    for name in ("q", "k", "v", "sinks", "bias"):
        gradient = getattr(found, name)
        if gradient is None:
            continue
        at = getattr(call, name) if name in "qkv" else call.keywords[name]
        step = 2.0**-2 if name in ("sinks", "bias") else STEP
        direction = gradient.nan_to_num().sign().to(at.dtype) * step
        (ahead, noise), (behind, _) = (loss(call, {name: at + s * direction}) for s in (1, -1))
        expected, noise = (ahead - behind) / (2 * step), noise / (2 * step)
        found_sum = gradient.double().nan_to_num().abs().sum().item()
        assert found_sum == pytest.approx(expected, rel=0.02, abs=noise), name
