"""The families that serve a workload on a GPU, their heuristics, and why others do not serve."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from flashsmith import gpus
from flashsmith.configs import (
    CAUSAL,
    FULL,
    VARIANTS,
    DType,
    Workload,
    get_autotuning_kernel_configs,
    get_sm90_autotuning_kernel_configs,
)
from flashsmith.configs.cost_model import grid_cost, resident_blocks
from flashsmith.configs.family import Family
from flashsmith.configs.operation import Serving
from flashsmith.configs.registry import FORWARD, family_of
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.configs.workload import D_HEADS
from flashsmith.errors import DeviceError
from flashsmith.gpus import GPU_ARCHITECTURES, GPU_MODELS, count_sms, get_gpu_architecture
from flashsmith.problem import Problem
from support.sm80_kernels import BASE
from support.sm90_kernels import LAST

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
SQUARE = Problem.square(DType.BF16, 128, batch=2, heads=4, seq_len=256)
ODD = replace(SQUARE, heads_kv=2, seq_len_q=77, seq_len_k=100)


def served(gpu: str | None, problem: Problem = SQUARE) -> Serving:
    return FORWARD.serving(Workload(problem), gpu)


def test_families_on_a_gpu_come_newest_first_and_on_the_emulator_plainest_first() -> None:
    assert FORWARD.families_on(None) == (SM80_FORWARD, SM90_FORWARD)
    assert FORWARD.families_on((9, 0)) == (SM90_FORWARD, SM80_FORWARD)
    for capability in ((8, 0), (8, 9), (10, 0), (12, 1)):
        assert FORWARD.families_on(capability) == (SM80_FORWARD,)
    with pytest.raises(DeviceError, match=r"the GPU has compute capability 7\.5"):
        FORWARD.families_on((7, 5))
    assert FORWARD.families_for(None) == FORWARD.families_on(None)
    assert (
        FORWARD.families_for("NVIDIA H200")
        == FORWARD.families_for("sm_90a")
        == FORWARD.families_on((9, 0))
    )
    assert FORWARD.families_for("a GPU of tomorrow", (9, 0)) == FORWARD.families_on(
        (9, 0)
    )  # by compute capability
    with pytest.raises(ValueError, match="gpu 'a GPU of tomorrow' is not known"):
        FORWARD.families_for("a GPU of tomorrow")
    with pytest.raises(DeviceError, match=r"Tesla T4 has compute capability 7\.5; .* need 8\.0"):
        FORWARD.families_for("Tesla T4")


def test_the_families_that_serve_come_in_the_order_of_the_gpu() -> None:
    assert [*served(None).by_heuristic] == [SM80_FORWARD, SM90_FORWARD]
    assert [*served(H100).by_heuristic] == [SM90_FORWARD, SM80_FORWARD]
    assert [*served(A100).by_heuristic] == [SM80_FORWARD]
    for gpu in (None, H100, A100):
        serves = served(gpu)
        first = next(iter(serves.by_heuristic))
        num_sms = None if gpu is None else count_sms(gpu)
        assert serves.heuristic_config == first.choose(Workload(SQUARE), num_sms)
        assert all(cfg.serves(SQUARE) for cfg in serves.by_heuristic.values())


def test_a_family_serves_every_shape_of_its_d_heads_and_every_variant() -> None:
    for problem, variant in product((SQUARE, ODD), VARIANTS):
        for gpu in (None, H100, A100):
            found = [*FORWARD.serving(Workload(problem, variant), gpu).by_heuristic]
            assert found == [*served(gpu).by_heuristic], (problem, gpu)
    for d_head in D_HEADS:
        problem = replace(SQUARE, d_head=d_head, d_v=d_head)
        expected = [family for family in FORWARD.families if d_head in family.d_heads]
        assert [*served(None, problem).by_heuristic] == expected


@pytest.mark.parametrize(("d_head", "d_v", "room"), [(80, 80, 96), (8, 72, 96), (136, 64, 192)])
def test_rows_of_other_sizes_go_to_the_next_d_head(d_head: int, d_v: int, room: int) -> None:
    problem = replace(SQUARE, d_head=d_head, d_v=d_v)
    assert {cfg.d_head for cfg in served(None, problem).by_heuristic.values()} == {room}


def test_a_config_serves_its_dtype_and_the_rows_that_take_its_d_head_and_no_others() -> None:
    for config in (BASE, LAST):
        own = replace(ODD, dtype=config.dtype, d_head=config.d_head, d_v=config.d_head)
        assert config.serves(own) and config.serves(replace(own, batch=0, seq_len_q=0))
        for d_head, d_v in ((104, 8), (8, 128), (128, 64)):
            assert config.serves(replace(own, d_head=d_head, d_v=d_v))
        for d_head, d_v in ((96, 96), (136, 8), (8, 136), (124, 128), (128, 127), (264, 264)):
            assert not config.serves(replace(own, d_head=d_head, d_v=d_v))
        assert not config.for_dtype(DType.FP16).serves(replace(own, dtype=DType.BF16))


def test_why_a_config_does_not_serve_is_told_in_words() -> None:
    bf16 = BASE.for_dtype(DType.BF16)
    assert served(None).why_not(bf16) == served(A100).why_not(bf16) == ""
    assert served(None).why_not(LAST) == served(H100).why_not(LAST) == ""
    assert served(A100).why_not(LAST) == f"the sm90 family does not run on {A100}"
    assert served(H100).why_not(replace(LAST, d_head=64)) == "it is for BF16 and d_head 64"
    assert served(H100).why_not(LAST.for_dtype(DType.FP16)) == "it is for FP16 and d_head 128"


def test_what_no_family_takes_is_refused_in_the_words_of_the_newest() -> None:
    for d_head, d_v, words in ((84, 64, "q has d_head 84"), (64, 264, "v has d_v 264")):
        problem = replace(SQUARE, d_head=d_head, d_v=d_v)
        message = f"{words}; supported are multiples of 8 up to 256"
        for gpu in (None, H100):
            with pytest.raises(ValueError, match=message):
                served(gpu, problem)
        with pytest.raises(ValueError, match=message):
            FORWARD.serving(Workload(problem, CAUSAL), A100)
    with pytest.raises(DeviceError, match=r"Tesla T4 has compute capability 7\.5"):
        served("Tesla T4")


def test_every_config_has_its_family() -> None:
    assert (family_of(BASE), family_of(LAST)) == (SM80_FORWARD, SM90_FORWARD)
    for family in FORWARD.families:
        both = [*family.sets.progression(), *family.sets.tuning_space()]
        assert both and all(family_of(config) is family for config in both)
        assert {config.d_head for config in both} <= set(family.d_heads)


@pytest.mark.parametrize("family", FORWARD.families, ids=lambda family: family.name)
def test_some_lengths_stand_for_every_answer_of_the_heuristic(family: Family) -> None:
    for d_head in family.d_heads:
        answers = [family.heuristic(workload) for workload in family.answers(DType.FP16, d_head)]
        assert {
            family.heuristic(Workload.square(DType.FP16, d_head, n)) for n in range(1, 5000)
        } == set(answers)


def test_a_causal_mask_leaves_a_query_fewer_keys() -> None:
    problem = replace(grid(8, 16, 4096), seq_len_k=4224)
    assert Workload(problem).keys_per_query == 4224
    assert Workload(problem, CAUSAL).keys_per_query == 4224 - 2048
    decoding = replace(problem, seq_len_q=1)
    assert Workload(decoding, CAUSAL).keys_per_query == 4224
    tiles = [SM80_FORWARD.choose(Workload(problem, v), 132).B_r for v in (FULL, CAUSAL)]
    assert tiles == [128, 128]
    shorter = replace(problem, seq_len_q=4000, seq_len_k=4000)
    tiles = [SM80_FORWARD.choose(Workload(shorter, v), 132).B_r for v in (FULL, CAUSAL)]
    assert tiles == [128, 64]


@pytest.mark.parametrize("family", FORWARD.families, ids=lambda family: family.name)
def test_small_tiles_are_legal_smaller_and_tried_by_the_tuner(family: Family) -> None:
    tried = {
        *family.sets.tuning_space(),
        *get_autotuning_kernel_configs(d_heads=(64, 96, 128, 256)),
    }
    for dtype, d_head in product(DType, family.d_heads):
        usual = family.heuristic(Workload.square(dtype, d_head, 4096))
        for small in family.smaller(Workload.square(dtype, d_head, 4096)):
            assert small.B_r < usual.B_r and not small.problems(small.minimum_gpu)
            assert small in tried
        configs = family.heuristic_configs(dtype, d_head)
        assert usual in configs and {*family.smaller(Workload.square(dtype, d_head, 4096))} <= {
            *configs
        }


# ---- the cost cost model, on 132 SMs ----


def grid(batch: int, heads: int, seq_len: int, d_head: int = 64) -> Problem:
    return Problem.square(DType.BF16, d_head, batch, heads, seq_len)


@pytest.mark.parametrize("family", FORWARD.families, ids=lambda family: family.name)
def test_few_tiles_are_made_small_and_many_are_not(family: Family) -> None:
    usual = family.heuristic(Workload.square(DType.BF16, 128, 512))
    (small,) = family.smaller(Workload.square(DType.BF16, 128, 4096))

    def chosen(batch: int, seq_len: int, num_sms: int | None = 132) -> object:
        return family.choose(Workload(grid(batch, 16, seq_len, 128)), num_sms)

    assert chosen(1, 512) == small
    assert chosen(32, 512) == chosen(4, 4096) == usual
    assert chosen(1, 512, num_sms=8) == usual
    assert chosen(1, 512, num_sms=None) == usual  # the emulator
    decoding = replace(grid(4, 16, 1, 128), seq_len_k=16384)
    assert family.choose(Workload(decoding), 132) == small


def test_the_sm_with_most_tiles_decides() -> None:
    usual = SM90_FORWARD.heuristic(
        Workload.square(DType.BF16, 128, 512)
    )  # one tile of 128 rows at a time
    of_tiles = {n: grid_cost(usual, grid(1, n, 128, 128), 132) for n in (1, 132, 133, 264, 265)}
    assert of_tiles[1] == of_tiles[132] > 0
    assert of_tiles[133] == of_tiles[264] == 2 * of_tiles[1]
    assert of_tiles[265] == 3 * of_tiles[1]
    assert grid_cost(usual, grid(1, 0, 128, 128), 132) == 0


def test_blocks_that_are_resident_together_cover_each_other() -> None:
    (small,) = SM90_FORWARD.smaller(Workload.square(DType.BF16, 64, 4096))
    assert resident_blocks(small) == 2
    one, two, three = (grid_cost(small, grid(1, n * 132, 64), 132) for n in (1, 2, 3))
    assert one < two < 2 * one
    assert three == one + two


def test_resident_blocks_are_as_ptxas_makes_them() -> None:
    """The H200's kernels have at most 112, 127, 145, 175 and 217 registers a thread, says ptxas."""
    small = {
        d: SM90_FORWARD.smaller(Workload.square(DType.BF16, d, 4096))[0]
        for d in SM90_FORWARD.d_heads
    }
    assert [resident_blocks(cfg) for cfg in small.values()] == [2, 2, 1, 1, 1]
    for d_head in SM90_FORWARD.d_heads:
        assert (
            resident_blocks(SM90_FORWARD.heuristic(Workload.square(DType.BF16, d_head, 512))) == 1
        )
    assert [
        resident_blocks(SM80_FORWARD.heuristic(Workload.square(DType.BF16, 128, n)))
        for n in (64, 512)
    ] == [3, 2]


def test_sms_are_counted_by_the_name() -> None:
    counts = {
        "NVIDIA H200": 132, "sm_90a": 132, "h20": 78, "NVIDIA H100 PCIe": 114, "NVIDIA A30": 56,
        A100: 108, "NVIDIA B200": 148, "NVIDIA L4": 58, "NVIDIA L40": 142, "RTX 4090": 142,
        "a GPU of tomorrow": 132, "": 132,
    }  # fmt: skip
    assert {name: count_sms(name) for name in counts} == counts
    for name in (*GPU_MODELS, *(gpu.name for gpu in GPU_ARCHITECTURES)):
        assert 10 <= count_sms(name) <= 170


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA RTX A6000", "sm_90a"])
def test_a_look_up_of_a_gpu_compiles_few_patterns(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Patterns of all models would take a tenth of a process's first call."""
    patterns: list[str] = []

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(pattern: str, *others: Any) -> Any:
            patterns.append(pattern)
            return function(pattern, *others)

        return counted

    functions = {name: counting(getattr(re, name)) for name in ("compile", "search", "fullmatch")}
    monkeypatch.setattr(gpus, "re", SimpleNamespace(**vars(re) | functions))
    get_gpu_architecture.__wrapped__(name)
    count_sms.__wrapped__(name)
    assert len(patterns) <= 4


def test_the_heuristic_takes_tiles_that_the_tuner_tries() -> None:
    """The number of stages is not compared. The heuristic's choices were measured beside their
    neighbours."""
    tried = {replace(cfg, n_stages=2) for cfg in get_sm90_autotuning_kernel_configs()}
    tried_sm80 = get_autotuning_kernel_configs(d_heads=(64, 128))
    for dtype in DType:
        for d_head in SM90_FORWARD.d_heads:
            heuristic = SM90_FORWARD.heuristic(Workload.square(dtype, d_head, 4096))
            assert not heuristic.problems() and replace(heuristic, n_stages=2) in tried, heuristic
        for d_head, length in product((64, 128), (64, 128, 192)):
            assert SM80_FORWARD.heuristic(Workload.square(dtype, d_head, length)) in tried_sm80


def test_a_tile_that_the_gpu_has_no_shared_memory_for_is_passed_over() -> None:
    """The heuristic's tile for d_head 256 takes 128 KiB; GPUs of 8.6, 8.9 and 12.0 have 99 KiB."""
    workload = Workload(grid(8, 16, 4096, 256))
    usual = SM80_FORWARD.heuristic(Workload.square(DType.BF16, 256, 4096))
    (small,) = SM80_FORWARD.smaller(Workload.square(DType.BF16, 256, 4096))
    chosen = {
        gpu: FORWARD.serving(workload, gpu).by_heuristic[SM80_FORWARD]
        for gpu in (A100, H100, "L40S")
    }
    assert chosen == {A100: usual, H100: usual, "L40S": small}
    for gpu in ("sm_80", "sm_86", "sm_89", "sm_120"):
        for d_head in SM80_FORWARD.d_heads:
            config = FORWARD.serving(Workload(grid(8, 16, 4096, d_head)), gpu).by_heuristic[
                SM80_FORWARD
            ]
            assert config.problems(gpu) == []


def test_a_gpu_that_is_in_no_list_takes_what_its_family_has() -> None:
    unknown = FORWARD.serving(Workload(grid(8, 16, 4096, 256)), "NVIDIA Z1", (13, 7))
    assert unknown.heuristic_config == SM80_FORWARD.heuristic(
        Workload.square(DType.BF16, 256, 4096)
    )
