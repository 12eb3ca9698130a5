"""The declared sets, the legality rules, and the fields that Python and C++ share."""

from __future__ import annotations

import re
import subprocess
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest

from flashsmith.configs import (
    DType,
    FlashForwardKernelConfig,
    KernelId,
    Variant,
    get_autotuning_kernel_configs,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
    parse_kernel_name_into_config,
    require_buildable,
    select_kernel_configs,
    should_autotune_config,
)
from flashsmith.gpus import GPU_ARCHITECTURES, get_gpu_architecture
from support.paths import CSRC_INCLUDE

BASE = parse_kernel_name_into_config(
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
)


# ---- the sets ----


def test_tuning_space_has_80_points_split_by_block_size() -> None:
    space = get_autotuning_kernel_configs()
    assert len(space) == len(set(space)) == 80
    by_block: dict[tuple[int, int], int] = {}
    for cfg in space:
        by_block[cfg.B_r, cfg.B_c] = by_block.get((cfg.B_r, cfg.B_c), 0) + 1
    assert by_block == {(64, 32): 16, (64, 64): 32, (128, 32): 16, (128, 64): 16}
    assert all(cfg.async_copy and cfg.eager_load_blocks and cfg.swizzled for cfg in space)
    assert {cfg.d_head for cfg in space} == {128}
    assert {cfg.n_warps for cfg in space} == {4}


def test_tuning_space_of_d_head_64_has_the_same_points() -> None:
    at_64 = get_autotuning_kernel_configs(d_heads=(64,))
    assert [replace(cfg, d_head=128) for cfg in at_64] == get_autotuning_kernel_configs()


def test_tuning_space_of_one_dtype() -> None:
    space = get_autotuning_kernel_configs([DType.BF16])
    assert len(space) == 40
    assert {cfg.dtype for cfg in space} == {DType.BF16}


def test_progression_is_the_seven_steps_in_order() -> None:
    steps = get_kernel_progression_configs()
    assert [cfg.short_form(include_tup=False) for cfg in steps] == [
        "async+load_0_0_0_tiles",
        "async+swizzled+load_0_0_0_tiles",
        "async+eager+swizzled+load_0_0_0_tiles",
        "async+eager+swizzled+load_2_2_2_tiles",
        "async+eager+swizzled+load_2_2_2_tiles+buffer",
        "async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
        "async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    ]
    assert {cfg.short_form().split(":")[0] for cfg in steps} == {"(FP16, 128, 64, 64, 4)"}


def test_progression_at_all_block_sizes_leaves_out_what_cannot_be_built() -> None:
    steps = get_kernel_progression_configs(all_block_sizes=True)
    assert len(steps) == len(set(steps)) == 56
    assert {(cfg.B_r, cfg.B_c, cfg.n_warps) for cfg in steps} == {
        (64, 32, 4),
        (64, 64, 4),
        (64, 128, 4),
        (128, 32, 4),
        (128, 64, 4),
        (128, 32, 8),
        (128, 64, 8),
        (128, 128, 8),
    }


def test_kernels_to_build_are_both_sets_sorted_and_unique() -> None:
    configs = get_kernels_to_build()
    assert len(configs) == 85
    assert configs == sorted(configs)
    assert set(configs) == {*get_autotuning_kernel_configs(), *get_kernel_progression_configs()}


def test_every_declared_config_is_legal_on_every_supported_gpu() -> None:
    configs = {
        *get_kernels_to_build(),
        *get_kernel_progression_configs(all_block_sizes=True),
        *get_autotuning_kernel_configs(d_heads=(64,)),
    }
    for gpu in GPU_ARCHITECTURES:
        if gpu.compute_capability >= (8, 0):
            assert [cfg for cfg in configs if cfg.problems(gpu.name)] == []


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, True),
        ({"async_copy": False}, False),
        ({"async_copy": False, "eager_load_blocks": False}, True),
        ({"Q_mma_load_K_tiles": 2}, False),  # B_r 64, B_c 64: Q has room
        ({"Q_mma_load_K_tiles": 2, "K_mma_load_K_tiles": 0, "B_c": 32}, False),  # Q and K differ
        ({"n_warps": 8}, False),
        ({"B_c": 32}, False),
        ({"B_c": 32, "Q_mma_load_K_tiles": 2}, True),
        ({"B_r": 128}, False),
        ({"B_r": 128, "Q_mma_load_K_tiles": 2}, True),
        ({"B_r": 128, "Q_mma_load_K_tiles": 2, "n_warps": 8}, True),
    ],
)
def test_should_autotune_config(change: dict[str, int], kept: bool) -> None:
    assert should_autotune_config(replace(BASE, **change)) is kept


# ---- choosing a set ----


@pytest.mark.parametrize(
    ("key", "count"),
    [
        ("prog", 7),
        ("progall", 56),
        ("prog-all", 56),
        ("prog_all", 56),
        ("progression", 7),
        ("PROG", 7),
        ("all", 85),
        ("tune", 80),
        ("TUNE", 80),
        ("64,32", 16),
        (" 64 , 64 ", 32),
        ("128,32", 16),
    ],
)
def test_kernels_key_as_argument_and_from_the_environment(
    key: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS", "sm90-prog")
    chosen = get_kernel_configs(kernels_key=key)
    assert len(chosen) == count
    monkeypatch.setenv("KERNELS", key)
    assert get_kernel_configs() == get_kernel_configs("") == get_kernel_configs(" ") == chosen


@pytest.mark.parametrize("value", [None, ""])
def test_kernels_unset_means_all(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELS", raising=False)
    if value is not None:
        monkeypatch.setenv("KERNELS", value)
    assert get_kernel_configs() == get_kernels_to_build()


@pytest.mark.parametrize("key", ["tuned", "pro", "64", "64,128", "64,32,4", "a,b", "-64,32"])
def test_wrong_kernels_key_lists_the_valid_ones(key: str) -> None:
    valid = "prog, progall, all, tune, B_r,B_c, sm90-prog, sm90-tune, sm90"
    valid += '.*"64,32" "64,64" "128,32" "128,64"'
    with pytest.raises(ValueError, match=valid) as error:
        get_kernel_configs(key)
    assert repr(key) in str(error.value)


def test_select_takes_keys_and_names_and_keeps_the_order() -> None:
    name = "(BF16, 64, 64, 64, 4): async+load_0_0_0_tiles"
    chosen = select_kernel_configs([name, "prog", BASE.kernel_name(), "prog"])
    assert chosen == [parse_kernel_name_into_config(name), *get_kernel_progression_configs()]
    assert BASE in chosen


def test_select_without_words_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS", "128,64")
    assert {(cfg.B_r, cfg.B_c) for cfg in select_kernel_configs()} == {(128, 64)}


# ---- legality ----


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ({"d_head": 80}, ["d_head is 80; supported are 64, 96, 128, 192, 256."]),
        (
            {"d_head": 96, "B_r": 128, "B_c": 32, "n_warps": 8},
            ["B_c is 32, but 8 warps copy 64 rows of d_head 96 at a time"],
        ),
        ({"B_r": 32}, ["B_r is 32;", "a multiple of 64"]),
        ({"B_c": 48}, ["B_c is 48; supported are 32, 64, 128."]),
        ({"n_warps": 2}, ["n_warps is 2; supported are 4, 8."]),
        ({"n_warps": 8}, ["B_r is 64, which 8 warps cannot share", "multiple of 128"]),
        ({"n_warps": 64, "B_r": 1024}, ["B_r is 1024;", "2048 threads per block"]),
        ({"Q_mma_load_K_tiles": 1}, ["Q_mma_load_K_tiles is 1; it must be 0 or a power of two"]),
        ({"K_mma_load_K_tiles": 3}, ["K_mma_load_K_tiles is 3; it must be 0 or a power of two"]),
        ({"V_mma_load_K_tiles": 6}, ["V_mma_load_K_tiles is 6; it must be 0 or a power of two"]),
        ({"Q_mma_load_K_tiles": 16}, ["Q has only 8 fragments (d_head 128 / 16)"]),
        ({"K_mma_load_K_tiles": 8, "d_head": 64}, ["K has only 4 fragments (d_head 64 / 16)"]),
        ({"V_mma_load_K_tiles": 4, "B_c": 32}, ["V has only 2 fragments (B_c 32 / 16)"]),
        ({"B_r": 128, "B_c": 128}, ["128 (S) + 128 (O) registers"]),
    ],
)
def test_problems_say_why(change: dict[str, int], reasons: list[str]) -> None:
    problems = replace(BASE, **change).problems()
    for reason in reasons:
        assert any(reason in problem for problem in problems), problems
    assert all(problem.endswith(".") for problem in problems)


@pytest.mark.parametrize(
    "change",
    [
        {"Q_mma_load_K_tiles": 8, "K_mma_load_K_tiles": 8, "V_mma_load_K_tiles": 4},
        {"V_mma_load_K_tiles": 2, "B_c": 32, "mma_double_buffer_loads": True},
        {"B_r": 128, "B_c": 128, "n_warps": 8},
        {"B_r": 128, "B_c": 128, "d_head": 64},
    ],
)
def test_what_is_at_the_limit_is_legal(change: dict[str, int]) -> None:
    assert replace(BASE, **change).problems() == []


def test_old_gpus_are_refused_with_the_reason() -> None:
    (problem,) = replace(BASE, d_head=64).problems("sm_75")
    assert "compute capability 7.5; 8.0 or newer" in problem


def test_shared_memory_is_checked_against_the_gpu() -> None:
    # (64 + 2 * 256) * 128 * 2 bytes = 144 KiB; an A100 has 163 KiB, an RTX 30 has 99 KiB.
    big = replace(BASE, B_c=256)
    assert big.shared_memory_bytes == 147456
    assert not any("shared memory" in problem for problem in big.problems("sm_80"))
    (problem,) = (p for p in big.problems("sm_86") if "shared memory" in p)
    assert "147456 bytes" in problem
    assert "sm_86 has at most 101376" in problem


@pytest.mark.parametrize("name", ["sm_90", "sm_90a", "9.0"])
def test_gpu_architecture_by_any_name(name: str) -> None:
    gpu = get_gpu_architecture(name)
    assert gpu.compute_capability == (9, 0)
    assert gpu.max_shared_memory_per_block_bytes == 227 * 1024


@pytest.mark.parametrize("name", ["", "sm_81", "sm_9", "90a0", "compute_90", "sm_80 "])
def test_unknown_gpu_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=r"sm_75, sm_80, .*sm_120"):
        BASE.problems(name)


def test_require_buildable_lists_every_problem() -> None:
    require_buildable(BASE)
    with pytest.raises(ValueError, match=r"(?s)d_head is 80.*V_mma_load_K_tiles is 3"):
        require_buildable(replace(BASE, d_head=80, V_mma_load_K_tiles=3))


# ---- the classes ----


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("dtype", "FP16", TypeError),
        ("dtype", 5, TypeError),
        ("d_head", True, TypeError),
        ("d_head", 128.0, TypeError),
        ("d_head", None, TypeError),
        ("d_head", 0, ValueError),
        ("B_r", -64, ValueError),
        ("B_c", 0, ValueError),
        ("n_warps", "4", TypeError),
        ("async_copy", 1, TypeError),
        ("eager_load_blocks", None, TypeError),
        ("Q_mma_load_K_tiles", -2, ValueError),
        ("V_mma_load_K_tiles", False, TypeError),
        ("optimized_softmax", 0, TypeError),
    ],
)
def test_wrong_field_is_named(field: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^{field}: expected .*{re.escape(repr(value))}"):
        replace(BASE, **{field: value})


def test_instance_and_variant_check_their_types() -> None:
    with pytest.raises(TypeError, match="config: expected FlashForwardKernelConfig"):
        KernelId(BASE.short_form())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="variant: expected Variant"):
        KernelId(BASE, True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="causal: expected a bool"):
        Variant(causal=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["FP16", "fp16", " Fp16 ", "5"])
def test_dtype_from_string(text: str) -> None:
    assert DType.from_string(text) is DType.FP16


@pytest.mark.parametrize("text", ["", "6", "fp32", "half", "FP16,BF16"])
def test_dtype_from_string_lists_the_supported(text: str) -> None:
    with pytest.raises(ValueError, match="supported: fp16, bf16"):
        DType.from_string(text)


def test_dtype_to_torch() -> None:
    torch = pytest.importorskip("torch")
    assert DType.FP16.to_torch_dtype() is torch.float16
    assert DType.BF16.to_torch_dtype() is torch.bfloat16


def test_flop_counts() -> None:
    cfg = replace(BASE, d_head=64, B_c=32)
    # 2 sequences, 3 heads, 96 rows: 3 blocks of K and V.
    assert cfg.attn_flop(2, 3, 96) == 2 * 3 * (2 * 96 * 96 * 64) * 2
    softmax_of_a_row = 5 * 96 + 3 * (3 + 64) + 64
    assert cfg.total_flop(2, 3, 96) == cfg.attn_flop(2, 3, 96) + 2 * 3 * 96 * softmax_of_a_row
    with pytest.raises(ValueError, match="n_heads: expected at least 1, got 0"):
        cfg.total_flop(2, 0, 96)


# ---- the C++ side ----


def test_cpp_struct_literal_order_and_derived_numbers(tmp_path: Path) -> None:
    """The compiler reads each field of the literal as Python wrote it, and sorts as Python does."""
    cfg = FlashForwardKernelConfig(
        DType.BF16, 64, 128, 32, 8, True, False, True, 2, 4, 8, False, True
    )
    lines = ['#include "flashsmith/flash_attention.cuh"', "using namespace flashsmith;"]
    lines.append(f"constexpr auto cfg = {cfg.to_cpp_struct()};")
    for field in fields(cfg)[1:]:
        name = field.name.replace("_tiles", "_fragments")
        lines.append(f"static_assert(cfg.{name} == {int(getattr(cfg, field.name))});")
    lines.append(f"static_assert(static_cast<int>(cfg.dtype) == {cfg.dtype.value});")
    lines.append(f"static_assert(shared_memory_bytes(cfg) == {cfg.shared_memory_bytes});")
    lines.append(f"static_assert(threads_per_block(cfg) == {cfg.threads_per_block});")
    for variant in (Variant(), Variant(causal=True)):
        lines.append(f"static_assert({variant.to_cpp_struct()}.causal == {int(variant.causal)});")
    configs = get_kernels_to_build()
    for a, b in pairwise(configs):
        lines.append(f"static_assert({a.to_cpp_struct()} < {b.to_cpp_struct()});")
    source = tmp_path / "literal.cc"
    source.write_text("\n".join(lines))
    subprocess.run(
        ["g++", "-std=c++20", "-fsyntax-only", f"-I{CSRC_INCLUDE}", str(source)], check=True
    )
