"""The lists of kernels to build ahead of time have all that gradients, decode and FP8 choose."""

from __future__ import annotations

import random
from itertools import product

import pytest

from flashsmith.configs import CAUSAL, FULL, VARIANTS, DType, KernelId
from flashsmith.configs.operation import capability_of
from flashsmith.configs.registry import BACKWARD, DECODE
from flashsmith.configs.sm90.fp8_space import fp8_heuristic
from flashsmith.configs.workload import D_HEADS, BackwardWorkload, DecodeWorkload
from flashsmith.gpus import count_sms
from flashsmith.problem import Problem
from flashsmith.selection.choose import choose_for
from flashsmith.selection.served import served_decodes, served_fp8, served_gradients

GPUS = [None, "sm_80", "sm_89", "sm_90a", "NVIDIA H200"]
DRAWS = 200


def draw_problem(draw: random.Random) -> Problem:
    kv = draw.choice((1, 2, 8))
    lengths = draw.randint(1, 9000), draw.randint(1, 9000)
    sizes = draw.randint(1, 16), kv * draw.choice((1, 4)), kv
    return Problem(draw.choice(tuple(DType)), draw.choice(D_HEADS), *sizes, *lengths)


@pytest.mark.parametrize("gpu", GPUS)
def test_all_that_gradients_choose_is_listed(gpu: str | None) -> None:
    draw = random.Random(1)
    capability = None if gpu is None else capability_of(gpu)
    served = set(served_gradients(gpu, capability=capability))
    for _ in range(DRAWS):
        variant, same = draw.choice(VARIANTS), draw.choice((False, True))
        workload = BackwardWorkload(draw_problem(draw), variant, same)
        config = choose_for(BACKWARD, workload, gpu, capability).config
        assert KernelId(config, variant) in served, workload


@pytest.mark.parametrize("gpu", GPUS)
def test_all_that_decode_chooses_is_listed(gpu: str | None) -> None:
    draw = random.Random(2)
    capability = None if gpu is None else capability_of(gpu)
    served = set(served_decodes(gpu, capability=capability))
    for _ in range(DRAWS):
        kind = draw.choice(((False, False), (True, False), (True, True)))
        of_q = draw.choice(tuple(DType)), draw.choice(D_HEADS), draw.randint(1, 300)
        flags = draw.choice((False, True)), draw.choice((False, True))
        workload = DecodeWorkload(*of_q, *kind, *flags)
        config = choose_for(DECODE, workload, gpu, capability).config
        assert {KernelId(config, variant) for variant in VARIANTS} <= served, workload


def test_all_that_fp8_chooses_is_listed() -> None:
    draw = random.Random(3)
    served = set(served_fp8((9, 0)))
    sms = count_sms("NVIDIA H200")
    for problem, in_v in product((draw_problem(draw) for _ in range(DRAWS)), (False, True)):
        for variant in VARIANTS:
            config = fp8_heuristic(problem, in_v, variant, sms)
            assert KernelId(config, variant) in served, problem


def test_there_are_fp8_kernels_for_hopper_alone() -> None:
    assert served_fp8((8, 9)) == served_fp8((10, 0)) == []
    assert served_fp8(None) == served_fp8((9, 0))


def test_parts_of_the_lists_can_be_asked_for() -> None:
    asked = {"dtypes": [DType.BF16], "d_heads": [64], "variants": [CAUSAL]}
    for listed in (served_gradients, served_decodes):
        part = listed("sm_80", **asked)
        assert part and set(part) < set(listed("sm_80"))
        assert {(k.config.dtype, k.config.d_head, k.variant) for k in part} == {
            (DType.BF16, 64, CAUSAL)
        }
    of_16_bits = served_decodes("sm_80", kinds_of_cache=[(False, False)], variants=[FULL])
    assert of_16_bits and not any(kernel.config.fp8_cache for kernel in of_16_bits)
