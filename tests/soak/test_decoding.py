"""The soak of decode: its kernels pass, and their possible faults are noticed."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from flashsmith.configs import (
    CAUSAL,
    FULL,
    VARIANTS,
    DecodeKernelConfig,
    DType,
    KernelId,
    Variant,
)
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.lab.soak import (
    EMULATOR,
    SoakCase,
    Verdict,
    check,
    prepare,
    random_case,
    soaked_kernels,
    takes,
    tile_boundary_cases,
)
from flashsmith.lab.soak.decoding import draw_cache
from flashsmith.lab.soak.functions import number_of_functions
from flashsmith.lab.soak.meaning import Meaning
from flashsmith.problem import Problem
from flashsmith.runtime import CallArgs, DecodeKernel, DecodeTensors

CONFIG = DECODE.choose_by_heuristic(DecodeWorkload(DType.FP16, 64), None)
FP8 = DECODE.choose_by_heuristic(DecodeWorkload(DType.FP16, 64, fp8_cache=True), None)
TOKENS = DECODE.choose_by_heuristic(
    DecodeWorkload(DType.FP16, 64, fp8_cache=True, per_token_scale=True), None
)
ALL = Variant.from_name("causal+window+softcap+alibi+sinks")
FUNCTIONS = replace(ALL, score=number_of_functions())
CASE = SoakCase(Problem(DType.FP16, 64, 2, 4, 2, 5, 90))
SEEDS = range(8)  # slots and pages, split and whole


def verdict_on(
    case: SoakCase,
    variant: Variant = FULL,
    reruns: int = 1,
    config: DecodeKernelConfig = CONFIG,
) -> Verdict:
    return check(KernelId(config, variant), prepare(case, "cpu"), reruns=reruns)


@pytest.mark.parametrize("config", [CONFIG, FP8, TOKENS], ids=str)
@pytest.mark.parametrize("variant", [CAUSAL, ALL, FUNCTIONS], ids=["causal", "all", "functions"])
def test_kernels_pass_cases_at_the_tile_boundaries_and_at_random(
    variant: Variant, config: DecodeKernelConfig
) -> None:
    rng = Random(1)
    drawn = [*tile_boundary_cases(config, variant, EMULATOR)[::3]]
    drawn += [random_case(rng, config, variant, EMULATOR) for _ in range(5)]
    wrong = [v.sentence for case in drawn if not (v := verdict_on(case, variant, 1, config)).ok]
    assert not wrong, "\n".join(wrong)


def test_rows_that_8_bits_leave_unaligned_are_refused() -> None:
    case = SoakCase(Problem(DType.FP16, 56, 1, 2, 2, 3, 20))
    assert not takes(FP8, case)
    assert takes(CONFIG, case)
    assert verdict_on(case, Variant(padded=True), 0, FP8).refused
    assert {
        case.problem.d_head % 16
        for case in tile_boundary_cases(FP8, Variant(padded=True), EMULATOR)
    } == {0}


@pytest.mark.parametrize("config", [FP8, TOKENS], ids=str)
@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_a_scale_that_is_not_heeded_is_seen(
    name: str, config: DecodeKernelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = DecodeKernel.__call__

    def without(self: DecodeKernel, tensors: DecodeTensors, *args: Any, **kwargs: Any) -> float:
        return call(self, tensors._replace(**{name: None}), *args, **kwargs)

    monkeypatch.setattr(DecodeKernel, "__call__", without)
    cases = [SoakCase(CASE.problem, seed=seed) for seed in SEEDS]
    assert not all(verdict_on(case, FULL, 0, config).ok for case in cases)


def test_scales_of_tokens_are_drawn_beside_entries_and_pages() -> None:
    drawn = [draw_cache(prepare(SoakCase(CASE.problem, seed=s), "cpu"), True, True) for s in SEEDS]
    of_tokens = [c for c in drawn if c.v_scale is not None and c.v_scale.ndim == 3]
    assert {cache.block_table is None for cache in of_tokens} == {False, True}
    assert all(cache.v_scale.shape == cache.v.shape[:3] for cache in of_tokens)


def test_an_empty_cache_is_taken() -> None:
    case = SoakCase(Problem(DType.FP16, 64, 1, 2, 2, 3, 0))
    assert takes(CONFIG, case)
    assert verdict_on(case).ok


def test_every_heuristic_is_soaked_with_variants_it_serves() -> None:
    configs = DECODE.heuristic_configs()
    kernels = soaked_kernels(configs)
    assert {kernel.config for kernel in kernels} == set(configs)
    assert all(kernel.config.serves_variant(kernel.variant) for kernel in kernels)
    features = {name for kernel in kernels for name in kernel.variant.name.split("+")}
    assert {"causal", "window", "softcap", "alibi", "sinks", "padded"} <= features
    scores = [kernel.variant.score for kernel in kernels if kernel.variant not in VARIANTS]
    assert set(scores) == {0, number_of_functions()}
    assert 0.3 < scores.count(0) / len(scores) < 0.7


def test_functions_that_are_not_heeded_are_seen() -> None:
    """The case with functions differs in its text from the case without, so that it can be
    repeated."""
    case = replace(CASE, meaning=Meaning(functions=True))
    assert SoakCase.parse(str(case)) == case
    assert case.kernel(CONFIG).variant == Variant(score=number_of_functions())
    prepared = prepare(case, "cpu")
    assert check(case.kernel(CONFIG), prepared, reruns=1).ok
    without = replace(prepared, extras=CallArgs())
    assert not check(KernelId(CONFIG), without, reruns=0).ok


def written_by(act: Any) -> Any:
    """Returns a call that does something wrong at its end."""
    call = DecodeKernel.__call__

    def wrong(self: DecodeKernel, tensors: DecodeTensors, *args: Any, **kwargs: Any) -> float:
        taken = call(self, tensors, *args, **kwargs)
        act(tensors, kwargs)
        return taken

    return wrong


def scribble(t: torch.Tensor | None) -> None:
    if t is not None and t.numel():
        t.view(-1)[:1] = 1


@pytest.mark.parametrize(
    "act, words",
    [
        (lambda tensors, _: tensors.o.mul_(2), "is wrong on"),
        (lambda tensors, _: tensors.lse.add_(1), "is wrong on"),
        (lambda _, given: scribble(given["counters"]), "workspace was left dirty"),
        (lambda tensors, _: tensors.k_cache[0, 0].fill_(1), "was written"),
    ],
    ids=["o", "lse", "counters", "the cache"],
)
def test_what_goes_wrong_is_seen(act: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecodeKernel, "__call__", written_by(act))
    cases = [SoakCase(CASE.problem, seed=seed) for seed in SEEDS]
    verdicts = [verdict_on(case, reruns=0) for case in cases]
    assert any(words in verdict.sentence for verdict in verdicts)
    if words == "is wrong on":
        assert not any(verdict.ok for verdict in verdicts)
