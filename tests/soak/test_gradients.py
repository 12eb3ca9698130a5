"""The soak of the backward: its truth, and the faults of kernels that it notices."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch

from flashsmith.configs import (
    VARIANTS,
    DType,
    KernelId,
    get_kernel_configs,
    parse_kernel_name_into_config,
)
from flashsmith.jit import Target
from flashsmith.lab.soak import (
    EMULATOR,
    SoakCase,
    SoakPlan,
    Verdict,
    check,
    prepare_gradients,
    random_case,
    soak,
    soaked_kernels,
    takes,
    tile_boundary_cases,
)
from flashsmith.lab.soak.draw_meaning import MIXED_VARIANTS
from flashsmith.problem import Problem
from flashsmith.reference import ReferenceGradients, gradient_allowance, reference_gradients
from flashsmith.runtime import BackwardKernel, GradientTensors, load_kernels

CONFIG = parse_kernel_name_into_config("(FP16, 64, 64, 64, 4): backward+stages_1")
CASE = SoakCase(Problem(DType.FP16, 64, 2, 4, 2, 20, 30), seed=1)
MEANT = (
    "causal=True window_size=20,-1 softcap=5.0 alibi=h sinks=True",
    "sinks=True bias=hj",
    "bias=bhij alibi=bh",
    "lengths_q=20,7 lengths_k=0,30 used_k=0,11 sinks=True",
    "used_q=3,20",
)
KINDS = [SoakCase.parse(f"{CASE} {words}") for words in MEANT]
Act = Callable[[int, GradientTensors], None]


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    variants = [*VARIANTS, *(case.variant for case in KINDS)]
    load_kernels([KernelId(CONFIG, v) for v in dict.fromkeys(variants)], Target.emulator())


def verdict_on(case: SoakCase, reruns: int = 2, load: Any = None) -> Verdict:
    return check(case.kernel(CONFIG), prepare_gradients(case, "cpu"), reruns=reruns, load=load)


@pytest.fixture
def afterwards(monkeypatch: pytest.MonkeyPatch) -> Callable[[Act], None]:
    """Returns a function that installs an action after each call; the action gets the number of the
    call and its tensors."""

    def install(act: Act) -> None:
        call, calls = BackwardKernel.__call__, []

        def launch(
            self: BackwardKernel, tensors: GradientTensors, scale: float, **rest: Any
        ) -> Any:
            result = call(self, tensors, scale, **rest)
            calls.append(0)
            act(len(calls), tensors)
            return result

        monkeypatch.setattr(BackwardKernel, "__call__", launch)

    return install


# ---- right kernels ----


@pytest.mark.parametrize(
    ("layout", "values"),
    [
        ("contiguous", "normal"),
        ("padded", "huge"),
        ("padded", "huge dropout=0.9"),
        ("heads_first", "constant"),
        ("packed", "spike:64"),
        ("padded", "fall:64:8.08"),
    ],
)
def test_right_kernels_pass(layout: str, values: str) -> None:
    verdict = verdict_on(SoakCase.parse(f"{CASE} layout={layout} values={values} causal=True"))
    assert verdict.ok, verdict.sentence
    assert set(verdict.ratios) == {"dq", "dk", "dv"}
    assert all(0 < ratio < 1 for ratio in verdict.ratios.values())
    assert "2 reruns bitwise equal" in verdict.sentence


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_right_kernels_pass_whatever_is_meant(case: SoakCase) -> None:
    verdict = verdict_on(case)
    assert verdict.ok, verdict.sentence
    assert ("dsinks" in verdict.ratios) == case.variant.sinks
    assert ("dbias" in verdict.ratios) == case.variant.bias


# ---- wrong kernels ----


def wrong_in_the_last_head(_: int, found: GradientTensors) -> None:
    found.dk[-1, -1, -1, -1] += 0.01


def not_written(_: int, found: GradientTensors) -> None:
    found.dq[1, 3, 2, 5] = math.nan


def twice(_: int, found: GradientTensors) -> None:
    found.dv.mul_(2)


def other_bits_in_the_last_run(n: int, found: GradientTensors) -> None:
    if n == 3:
        found.dv[0, 0, 0, 0] *= 1.001


def wrote_before_dq(_: int, found: GradientTensors) -> None:
    found.dq.untyped_storage()[0] = 1


def wrote_behind_dv(_: int, found: GradientTensors) -> None:
    storage = found.dv.untyped_storage()
    storage[len(storage) - 1] = 1


def wrote_do(_: int, found: GradientTensors) -> None:
    found.do[0, -1, 0, 0] += 1


def wrote_dlse(_: int, found: GradientTensors) -> None:
    found.dlse[0, 0, 0] += 1


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (wrong_in_the_last_head, r"dk at \(1, 29, 1, 63\)"),
        (not_written, r"dq at \(1, 3, 2, 5\): got nan"),
        (twice, "dv at"),
        (other_bits_in_the_last_run, "1 of 2 reruns gave other bits"),
        (wrote_before_dq, "memory around dq or dk or dv was written"),
        (wrote_behind_dv, "memory around dq or dk or dv was written"),
        (wrote_do, "q, k, v, o, lse, do or dlse was written"),
        (wrote_dlse, "q, k, v, o, lse, do or dlse was written"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("layout", ["contiguous", "heads_first"])
def test_what_is_wrong_is_seen(
    act: Act, said: str, layout: str, afterwards: Callable[[Act], None]
) -> None:
    afterwards(act)
    verdict = verdict_on(SoakCase.parse(f"{CASE} layout={layout}"))
    assert not verdict.ok
    assert re.search(said, verdict.failure), verdict.failure


@pytest.mark.parametrize("name", ["dsinks", "dbias"])
def test_wrong_gradients_by_sinks_and_bias_are_seen(
    name: str, afterwards: Callable[[Act], None]
) -> None:
    afterwards(lambda _, found: getattr(found, name).add_(0.02))
    assert f"{name} at" in verdict_on(KINDS[1]).failure


def test_rows_that_no_sequence_uses_are_not_to_be_written(
    afterwards: Callable[[Act], None],
) -> None:
    def write(_: int, found: GradientTensors) -> None:
        found.dq[0, 3] = 0

    afterwards(write)
    assert "dq at (0, 3, 0, 0): got 0, expected nan" in verdict_on(KINDS[-1]).failure


def test_kernels_that_add_up_in_any_order_only_have_to_be_right(
    afterwards: Callable[[Act], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(CONFIG), "is_deterministic", False)

    def vary(n: int, found: GradientTensors) -> None:
        found.dq[0, 0, 0, 0] *= 1 + n * 2.0**-10

    afterwards(vary)
    verdict = verdict_on(CASE)
    assert verdict.ok and "2 reruns right" in verdict.sentence, verdict.sentence

    def spoil_the_last(n: int, found: GradientTensors) -> None:
        if n == 5:
            found.dq[0, 0, 0, 0] += 1

    afterwards(spoil_the_last)
    failure = verdict_on(CASE, load=_Load()).failure
    assert failure == "1 of 2 reruns beside another stream were wrong"


class _Load:
    def add(self) -> None: ...

    def wait(self) -> None: ...


# ---- the truth ----


def test_truth_is_that_of_each_sequence_alone() -> None:
    case = KINDS[3]
    prepared = prepare_gradients(case, "cpu")
    forward, truth = prepared.forward, prepared.truth
    q, k, v = forward.inputs
    assert prepared.dlse is not None
    alone: list[ReferenceGradients] = []
    for rows, keys, head in ((slice(0, 20), slice(0, 0), 0), (slice(20, 27), slice(0, 11), 1)):
        found = reference_gradients(
            q[rows][None], k[keys][None], v[keys][None], prepared.do[rows][None],
            dlse=prepared.dlse[:, rows][None], sinks=forward.semantics.sinks,
        )  # fmt: skip
        assert torch.equal(truth.exact["dq"][rows], found.q[0])
        assert torch.equal(truth.exact["dk"][keys], found.k[0]), head
        alone.append(found)
    (one, other) = (each.sinks for each in alone)
    assert one is not None and other is not None
    assert torch.allclose(truth.exact["dsinks"], one + other)
    assert truth.used["dk"][:11].all() and not truth.used["dk"][11:].any()
    assert truth.exact["dk"][11:].isnan().all() and prepared.do[27:].isnan().all()


def test_truth_in_parts_is_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    for case in (KINDS[1], KINDS[2]):
        whole = prepare_gradients(case, "cpu").truth
        with monkeypatch.context() as context:
            context.setattr("flashsmith.lab.soak.prepared._MAX_SCORES_AT_ONCE", 1)
            parts = prepare_gradients(case, "cpu").truth
        for name in ("exact", "low_precision", "allowance"):
            torch.testing.assert_close(getattr(parts, name), getattr(whole, name))


def test_allowance_is_what_the_largest_errors_of_weights_do() -> None:
    """The allowance covers the largest errors of the weights: each row's scores move by one number,
    whose sign varies by key."""
    case = SoakCase.parse(f"{CASE} seed=4")
    prepared = prepare_gradients(case, "cpu")
    q, k, v = prepared.forward.inputs
    e = 1e-3
    errors = torch.full(prepared.forward.placed.lse.shape, 2 * e)
    allowed = gradient_allowance(q, k, v, prepared.do, errors)
    noise = e * torch.randn(2, 4, 20, 30).sign()
    exact = reference_gradients(q, k, v, prepared.do, bias=torch.zeros(2, 4, 20, 30))
    moved = reference_gradients(q, k, v, prepared.do, bias=noise)
    for name in ("q", "k", "v"):
        difference = (getattr(moved, name) - getattr(exact, name)).abs()
        share = difference / getattr(allowed, name)
        assert 0.01 < share.max() < 1, name


# ---- drawn cases ----


def test_cases_have_finite_values_and_every_pattern_that_is() -> None:
    cases = [
        case for case in tile_boundary_cases(CONFIG, VARIANTS[1], EMULATOR) if takes(CONFIG, case)
    ]
    cases += [random_case(Random(i), CONFIG, MIXED_VARIANTS[0], EMULATOR) for i in range(100)]
    assert all(case.values.are_finite for case in cases)
    patterns = {case.values.pattern for case in cases}
    assert {"huge", "constant", "zeros", "spike", "match", "rise", "fall"} <= patterns


def test_every_kernel_of_the_set_is_soaked_with_a_variant_that_it_has() -> None:
    configs = get_kernel_configs("backward")
    kernels = soaked_kernels(configs)
    assert {kernel.config for kernel in kernels if kernel.variant in VARIANTS} == set(configs)
    assert all(kernel.config.serves_variant(kernel.variant) for kernel in kernels)
    others = [kernel for kernel in kernels if kernel.variant not in VARIANTS]
    for config in configs:  # of two that a variant makes the same, one is enough
        assert any(each.config == config.adapted_to(each.variant) for each in others), config


def test_forward_and_backward_share_a_soak_and_no_case() -> None:
    forward = KernelId(parse_kernel_name_into_config("(FP16, 64, 64, 64, 1): wgmma+stages_1"))
    plan = SoakPlan(tile_boundaries=False, random_cases=2, reruns=0, seed=2)
    tallies = soak([forward, KernelId(CONFIG)], plan, "cpu")
    assert [tally.cases for tally in tallies.values()] == [2, 2]
    assert not any(tally.failures for tally in tallies.values())
    assert set(tallies[forward].ratios) == {"o", "lse"}
    assert set(tallies[KernelId(CONFIG)].ratios) == {"dq", "dk", "dv"}


def test_without_queries_the_gradients_of_keys_are_zero() -> None:
    case = SoakCase(Problem(DType.FP16, 64, 1, 2, 2, 0, 5))
    truth = prepare_gradients(case, "cpu").truth
    assert (truth.exact["dk"] == 0).all() and (truth.exact["dv"] == 0).all()
    verdict = verdict_on(case)
    assert verdict.ok, verdict.sentence
