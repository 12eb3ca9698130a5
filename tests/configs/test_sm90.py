"""The sm90 family's configurations: names, legality, declared sets, and what C++ shares with
them."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest

from flashsmith.configs import (
    CAUSAL,
    FULL,
    DType,
    KernelId,
    Variant,
    get_autotuning_kernel_configs,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_sm90_autotuning_kernel_configs,
    get_sm90_kernel_progression_configs,
    get_sm90_kernels_to_build,
    parse_kernel_name_into_config,
    parse_kernel_name_into_instance,
    require_buildable,
    select_kernel_configs,
    sort_key,
)
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.gpus import get_gpu_architecture
from support.paths import CSRC_INCLUDE
from support.sm90_kernels import CONFIGS as BUILT
from support.sm90_kernels import PROGRESSION

WHOLE = parse_kernel_name_into_config(
    "(BF16, 128, 128, 128, 2): wgmma+stages_2+q_regs_8+overlap+ping_pong+persistent+queue+tiles"
    "+heads_4+cluster_2+lazy_8+stale+fma_exp_4+tma_store"
)
PLAIN = parse_kernel_name_into_config("(FP16, 64, 192, 80, 3): wgmma+stages_1")


# ---- names ----


def test_spellings_are_exact() -> None:
    assert WHOLE.short_form() == (
        "(BF16, 128, 128, 128, 2): wgmma+stages_2+q_regs_8+overlap+ping_pong+persistent+queue+tiles"
        "+heads_4+cluster_2+lazy_8+stale+fma_exp_4+tma_store"
    )
    assert str(PLAIN) == "(FP16, 64, 192, 80, 3): wgmma+stages_1"
    assert PLAIN.to_cpp_struct() == (
        "Sm90ForwardKernelConfig{ScalarType::Half, 64, 192, 80, 3, 1, 0, false, false, "
        "false, false, false, 0, 1, 0, false, 0, false, false, false, false, false, false, false}"
    )
    assert KernelId(PLAIN, CAUSAL).slug == ("fp16_d64_r192_c80_w3_wgmma_stages_1_causal")
    assert KernelId(PLAIN, CAUSAL).kernel_name() == (
        "void flashsmith::sm90::forward_kernel<flashsmith::sm90::KernelTraits<"
        "flashsmith::Sm90ForwardKernelConfig{(flashsmith::ScalarType)5, 64, 192, 80, 3, 1, "
        "0, false, false, false, false, false, 0, 1, 0, false, 0, false, false, false, false, "
        "false, false, false}, "
        "flashsmith::Variant{true, false, false, false, false, false, false, false, 0l, false, "
        "false}> >"
        "(flashsmith::Sm90ForwardKernelArgs)"
    )


# nvcc 13.0 and g++ 12 give these names to the kernel of PLAIN.
_MANGLED = (
    "_ZN10flashsmith4sm9014forward_kernelINS0_12KernelTraitsIXtl"
    "NS_23Sm90ForwardKernelConfigELNS_10ScalarTypeE5ELi64ELi192ELi80ELi3ELi1E{rest}E"
    "EXtlNS_7VariantE{variant}EEEEEEvNS_21Sm90ForwardKernelArgsE"
)
_REST = "Li0ELb0ELb0ELb0ELb0ELb0ELi0ELi1ELi0ELb0ELi0ELb0ELb0ELb0ELb0E"


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        (_MANGLED.format(rest=_REST, variant="Lb1E"), CAUSAL),
        # g++ omits trailing zeros
        (_MANGLED.format(rest="Li0ELb0ELb0ELb0ELb0ELb0ELi0ELi1E", variant=""), FULL),
        (
            "sm90::forward_kernel<sm90::KernelTraits<Sm90ForwardKernelConfig"
            "{(c10::ScalarType)5, 64, 192, 80, 3, 1, 0, false, false, false, false, false, 0, "
            "1}, Variant{true}>>",
            CAUSAL,
        ),
        ("( fp16,64, 192,80,3 ) : stages_1+wgmma", FULL),
        ("| 1 | **(FP16, 64, 192, 80, 3): wgmma+stages_1+cluster_1+heads_0** | 3 |", FULL),
    ],
)
def test_spellings_from_outside(name: str, variant: Variant) -> None:
    assert parse_kernel_name_into_instance(name) == KernelId(PLAIN, variant)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("(FP16, 64, 64, 64, 1): wgmma", "it has no stages_N"),
        ("(FP16, 64, 64, 64, 1): stages_1", "features are async, eager"),
        ("(FP16, 64, 64, 64, 1): wgmma+stages_1+async", "features are wgmma, stages_N, q_regs_N"),
        ("(FP16, 64, 64, 64, 1): wgmma+stages_1+stages_2", "'stages_2' is unknown or repeated"),
        ("(FP16, 64, 64, 64, 1): wgmma+stages_1+lazy", "'lazy' is unknown"),
        ("(FP16, 64, 64, 64, 1): wgmma+stages_1+lazy_", "'lazy_' is unknown"),
        ("(FP16, 64, 64, 64, 1): wgmma+stages_0", "n_stages: expected at least 1"),
        ("Sm90ForwardKernelConfig{(c10::ScalarType)5, 64, 64, 64, 1}", "n_stages: expected"),
        (f"Sm90ForwardKernelConfig{{{', '.join('5' * 25)}}}", "25 values for the 24 fields"),
        (f"{WHOLE} | {PLAIN}", "names 2 kernels"),
        (f"{WHOLE.kernel_name()} {get_kernel_progression_configs()[0].kernel_name()}", "names 2"),
    ],
)
def test_bad_name_says_what_is_wrong_and_what_is_valid(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"valid are .*Sm90ForwardKernelConfig\{...\}") as error:
        parse_kernel_name_into_config(name)
    assert reason in str(error.value)


# ---- both families together ----


def test_instances_of_both_families_sort_by_family_first() -> None:
    expected = [
        KernelId(cfg, variant)
        for configs in (get_autotuning_kernel_configs(), get_sm90_autotuning_kernel_configs())
        for cfg in configs
        for variant in (FULL, CAUSAL)
    ]
    shuffled = random.Random(0).sample(expected, len(expected))
    assert sorted(shuffled) == expected
    mixed = [WHOLE, *get_kernel_progression_configs(), PLAIN]
    by_family = sorted(mixed, key=sort_key)
    assert by_family == [*sorted(get_kernel_progression_configs()), PLAIN, WHOLE]
    assert len({instance.slug for instance in expected}) == len(expected)


def test_an_instance_is_not_sorted_with_anything_else() -> None:
    with pytest.raises(TypeError):
        sorted([KernelId(PLAIN), PLAIN])  # type: ignore[type-var]


# ---- the sets ----


def test_progression_adds_one_idea_a_step() -> None:
    features = [
        set(cfg.short_form(include_tup=False).split("+"))
        for cfg in get_sm90_kernel_progression_configs()
    ]
    assert features[0] == {"wgmma", "stages_2"}
    for before, after in pairwise(features):
        assert before < after
        added = after - before
        # Two fields are one idea if neither works alone.
        one_idea = [{"persistent", "tiles"}, {"queue", "heads_"}]
        assert len(added) == 1 or {text.rstrip("0123456789") for text in added} in one_idea
    assert {cfg.short_form().split(":")[0] for cfg in PROGRESSION} == {"(BF16, 128, 128, 128, 2)"}


def test_tuning_space_is_small_legal_and_whole() -> None:
    space = get_sm90_autotuning_kernel_configs()
    assert space == sorted(set(space))
    assert not [cfg for cfg in space if cfg.problems()]
    kinds = Counter((cfg.dtype, cfg.d_head) for cfg in space)
    assert set(kinds) == {(dtype, d) for dtype in DType for d in (64, 96, 128, 192, 256)}
    assert max(kinds.values()) <= 60


def test_tuning_space_of_one_dtype_and_d_head() -> None:
    space = get_sm90_autotuning_kernel_configs([DType.FP16], [256])
    assert {(cfg.dtype, cfg.d_head) for cfg in space} == {(DType.FP16, 256)}
    assert set(space) < set(get_sm90_autotuning_kernel_configs())
    with pytest.raises(ValueError, match="d_head 80 is not known; supported: 64, 96, 128"):
        get_sm90_autotuning_kernel_configs(d_heads=(64, 80))


def test_keys_of_the_sets() -> None:
    assert get_kernel_configs("sm90-prog") == get_sm90_kernel_progression_configs()
    assert get_kernel_configs("SM90-Tune") == get_sm90_autotuning_kernel_configs()
    both = get_kernel_configs("sm90")
    assert both == get_sm90_kernels_to_build() == sorted(both)
    assert set(both) == {*get_kernel_configs("sm90-prog"), *get_kernel_configs("sm90-tune")}
    chosen = select_kernel_configs([str(PLAIN), "prog", "sm90-prog", WHOLE.kernel_name()])
    assert chosen == [PLAIN, *get_kernel_progression_configs(), *PROGRESSION, WHOLE]


# ---- legality ----

BASE = PROGRESSION[-1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"d_head": 80}, "d_head is 80; supported are 64, 96, 128, 192, 256."),
        ({"n_warpgroups": 5, "B_r": 320}, "n_warpgroups is 5; supported are 1 to 4."),
        ({"B_r": 64}, "B_r is 64; each of the 2 warpgroups"),
        ({"B_c": 40}, "B_c is 40; it must be a multiple of 16 up to 256."),
        ({"B_c": 272}, "B_c is 272; it must be a multiple of 16 up to 256."),
        ({"n_stages": 9}, "n_stages is 9; at most 8"),
        ({"n_stages": 1}, "overlap_softmax needs the next block's K"),
        ({"ping_pong": True, "n_warpgroups": 1, "B_r": 64}, "ping_pong needs warpgroups that"),
        ({"persistent": False}, "dynamic_queue needs persistent blocks"),
        ({"persistent": False}, "overlap_tiles needs persistent blocks and overlap_softmax."),
        ({"overlap_softmax": False}, "overlap_tiles needs persistent blocks and overlap_softmax."),
        ({"cluster_size": 3}, "cluster_size is 3; supported are 1 to 2."),
        ({"cluster_size": 2}, "dynamic_queue hands out tiles one by one; the blocks of a cluster"),
        ({"packed_heads": True, "fp8_scores": True}, "packed_heads needs 16-bit tensors"),
        ({"lazy_rescale_log2": 9}, "lazy_rescale_log2 is 9; at most 8"),
        ({"lazy_rescale_log2": 0}, "stale_maximum needs room for growth"),
        ({"dtype": DType.FP16}, "lazy_rescale_log2 is 8; with stale_maximum P is smaller"),
        ({"Q_steps_in_registers": 9}, "Q_steps_in_registers is 9; with d_head 128 Q K^T has 8."),
        ({"fma_exponentials": 17}, "fma_exponentials is 17 of 16"),
        ({"fma_exponentials": 1}, "with stale_maximum there are no registers for polynomials"),
        (
            {"n_warpgroups": 3, "B_r": 192},
            "needs 216 registers, 64 (O) + 64 (S) + 32 (P) + 32 (Q) + 24 (other); "
            "with 3 consumer warpgroups it has 160.",
        ),
        ({"n_stages": 4}, "bytes of shared memory; a block on sm_90 has at most 232448."),
    ],
)
def test_problems_say_why(change: dict[str, int], reason: str) -> None:
    problems = replace(BASE, **change).problems()
    assert any(reason in problem for problem in problems), problems
    assert all(problem.endswith(".") for problem in problems)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"heads_per_group": 0, "stale_maximum": False, "fma_exponentials": 16},
        {"n_stages": 8, "B_c": 16},
        {"cluster_size": 2, "dynamic_queue": False},
        {"n_warpgroups": 4, "B_r": 256, "d_head": 64, "B_c": 16, "Q_steps_in_registers": 0},
        {"dtype": DType.FP16, "lazy_rescale_log2": 4},
        {"overlap_softmax": False, "overlap_tiles": False, "n_stages": 1},
        {"d_head": 64, "B_c": 240, "Q_steps_in_registers": 0},
        {
            "d_head": 64, "B_c": 256, "Q_steps_in_registers": 4,
            "overlap_softmax": False, "overlap_tiles": False,
        },
    ],
)  # fmt: skip
def test_what_is_at_the_limit_is_legal(change: dict[str, int]) -> None:
    assert replace(BASE, **change).problems() == []


def test_without_overlap_p_takes_the_registers_of_s() -> None:
    tight = replace(PLAIN, B_c=176, n_stages=2)  # 32 (O) + 88 (S) + 24 registers, and 44 for P
    assert tight.problems() == []
    assert replace(tight, Q_steps_in_registers=4).problems() == []  # 160 of 160 registers
    (problem,) = replace(tight, overlap_softmax=True).problems()
    assert "44 (P)" in problem


@pytest.mark.parametrize("gpu", ["sm_80", "sm_89", "sm_100", "sm_120"])
def test_other_gpus_are_refused_with_the_reason(gpu: str) -> None:
    problems = BASE.problems(gpu)
    assert any("the sm90 family exist on 9.0 alone (sm_90a)" in problem for problem in problems)
    assert not SM90_FORWARD.runs_on(get_gpu_architecture(gpu).compute_capability)
    with pytest.raises(ValueError, match=f"cannot be built for {gpu}"):
        require_buildable(BASE, gpu)


@pytest.mark.parametrize("gpu", ["sm_90", "sm_90a", "9.0"])
def test_sm90_by_any_name(gpu: str) -> None:
    assert BASE.problems(gpu) == []
    assert SM90_FORWARD.runs_on(get_gpu_architecture(gpu).compute_capability)
    require_buildable(BASE)


# ---- the C++ side ----


def test_cpp_struct_literal_order_and_derived_numbers(tmp_path: Path) -> None:
    """The compiler reads each field of the literal as Python wrote it, and sorts as Python does."""
    lines = ['#include "flashsmith/sm90/arguments.cuh"', "using namespace flashsmith;"]
    for cfg in (WHOLE, *BUILT):
        literal = cfg.to_cpp_struct()
        for name in ("shared_memory_bytes", "threads_per_block"):
            lines.append(f"static_assert({name}({literal}) == {getattr(cfg, name)});")
    for field in fields(WHOLE):
        value = int(getattr(WHOLE, field.name))
        lines.append(
            f"static_assert(static_cast<int>({WHOLE.to_cpp_struct()}.{field.name}) == {value});"
        )
    for a, b in pairwise(get_sm90_autotuning_kernel_configs()):
        lines.append(f"static_assert({a.to_cpp_struct()} < {b.to_cpp_struct()});")
    source = tmp_path / "literal.cc"
    source.write_text("\n".join(lines))
    subprocess.run(
        [
            *("g++", "-std=c++20", "-fsyntax-only", "-DFLASHSMITH_EMULATOR", str(source)),
            *(f"-I{CSRC_INCLUDE}", f"-I{CSRC_INCLUDE.parent}"),
        ],
        check=True,
    )


def test_another_dtype_keeps_the_tiles_and_its_own_room_for_a_stale_maximum() -> None:
    for config in get_kernel_configs("sm90"):
        for dtype in DType:
            moved = config.for_dtype(dtype)
            assert moved.problems(moved.minimum_gpu) == []
            lazy = {"lazy_rescale_log2": moved.lazy_rescale_log2}
            assert moved == replace(config, dtype=dtype, **lazy)
            largest = 4 if config.stale_maximum and dtype == DType.FP16 else 8
            assert moved.lazy_rescale_log2 == min(config.lazy_rescale_log2, largest)


@pytest.mark.parametrize(
    ("tile", "with_alibi", "with_bias"),
    [
        ((64, 256, 64, 4), (256, 64, 4), (192, 64, 3)),
        ((64, 192, 128, 3), (192, 112, 3), (192, 96, 3)),
        ((128, 192, 80, 3), (192, 64, 3), (128, 80, 2)),
        ((128, 128, 128, 2), (128, 128, 2), (128, 112, 2)),
        ((256, 128, 64, 2), (128, 32, 2), (128, 32, 2)),
        ((256, 64, 64, 1), (64, 64, 1), (64, 32, 1)),
    ],
)
def test_scores_that_know_their_place_keep_the_warpgroups_that_have_registers(
    tile: tuple[int, ...], with_alibi: tuple[int, ...], with_bias: tuple[int, ...]
) -> None:
    """The next larger tile would spill in each case, says ptxas."""
    d_head, B_r, B_c, n = tile
    ping_pong = {"ping_pong": n > 1, "overlap_tiles": False, "n_stages": 2}
    config = replace(BASE, d_head=d_head, B_r=B_r, B_c=B_c, n_warpgroups=n, **ping_pong)
    assert config.adapted_to(Variant(causal=True)) == config
    alibi, function, bias = (
        Variant(alibi=True, varlen=True), Variant(score=1), Variant(alibi=True, bias=True),
    )  # fmt: skip
    for variant, expected in ((alibi, with_alibi), (function, with_alibi), (bias, with_bias)):
        roomy = config.adapted_to(variant)
        assert (roomy.B_r, roomy.B_c, roomy.n_warpgroups) == expected
        assert roomy.Q_steps_in_registers == 0
        assert roomy.adapted_to(variant) == roomy
