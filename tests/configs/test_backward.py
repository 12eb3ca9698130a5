"""The configurations of the backward: names, legality, and which of them serves a workload."""

from __future__ import annotations

import csv
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import pytest

from flashsmith.configs import (
    CAUSAL,
    BackwardKernelConfig,
    DType,
    FlashBackwardKernelConfig,
    KernelId,
    Sm80SumsBackwardKernelConfig,
    Sm90BackwardKernelConfig,
    Variant,
    parse_kernel_name_into_config,
    parse_kernel_name_into_instance,
)
from flashsmith.configs.registry import BACKWARD
from flashsmith.configs.sm90.backward_space import heuristic
from flashsmith.configs.workload import BackwardWorkload
from flashsmith.errors import DeviceError
from flashsmith.problem import Problem
from support.backward_kernels import KERNELS, VARIED

CONFIGS = [*BACKWARD.heuristic_configs(), *VARIED]
EACH = pytest.mark.parametrize("cfg", CONFIGS, ids=str)
PLAIN, H100, A100 = Variant(), (9, 0), (8, 0)


def workload(
    d_head: int = 128, variant: Variant = PLAIN, *, seq_len: int = 256, deterministic: bool = False
) -> BackwardWorkload:
    problem = Problem.square(DType.BF16, d_head, batch=1, heads=2, seq_len=seq_len)
    return BackwardWorkload(problem, variant, deterministic)


@EACH
def test_names_round_trip(cfg: BackwardKernelConfig) -> None:
    for name in (cfg.short_form(), cfg.to_cpp_struct(), cfg.kernel_name()):
        assert parse_kernel_name_into_config(name) == cfg
    assert "backward" in cfg.short_form().partition(": ")[2].split("+")


def test_names_of_kernels_round_trip_and_differ() -> None:
    assert len({kernel.slug for kernel in KERNELS}) == len(KERNELS)
    for kernel in KERNELS:
        assert parse_kernel_name_into_instance(kernel.name) == kernel
        assert parse_kernel_name_into_instance(kernel.kernel_name(with_types=True)) == kernel


@EACH
def test_one_changed_field_changes_the_name(cfg: BackwardKernelConfig) -> None:
    for field in fields(cfg):
        value = getattr(cfg, field.name)
        other = not value if isinstance(value, bool) else value
        if field.type == "int":
            other = value + 1
        if field.type == "DType":
            other = DType.FP16 if value == DType.BF16 else DType.BF16
        changed = replace(cfg, **{field.name: other})
        assert changed.short_form() != cfg.short_form(), field.name
        assert KernelId(changed).slug != KernelId(cfg).slug


@EACH
def test_declared_configurations_can_be_built(cfg: BackwardKernelConfig) -> None:
    assert not cfg.problems(cfg.plainest_gpu)
    is_for_newer = cfg.exact_arch or cfg.plainest_gpu != cfg.minimum_gpu
    assert bool(cfg.problems("sm_80")) == is_for_newer, "sm90 has instructions and room of its own"


BASE = FlashBackwardKernelConfig(DType.FP16, 64, 64, 64, 4, 1, False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"d_head": 80}, "d_head is 80; supported are 64, 96, 128, 192, 256."),
        ({"B_r": 96}, "B_r is 96; supported are 64, 128."),
        ({"B_c": 16}, "B_c is 16; supported are 32, 64."),
        ({"n_stages": 3}, "n_stages is 3; supported are 1, 2."),
        ({"n_warps": 8}, "B_r is 64; each of the 8 warps"),
        ({"d_head": 256}, "registers per thread"),
        ({"d_head": 256, "split_dK_dV": True, "B_r": 128, "n_warps": 8, "n_stages": 2},
         "bytes of shared memory"),
    ],
)  # fmt: skip
def test_problems_say_why(change: dict[str, int], reason: str) -> None:
    assert not BASE.problems("sm_80")
    problems = replace(BASE, **change).problems("sm_80")
    assert any(reason in problem for problem in problems), problems


def test_the_newest_family_that_serves_is_chosen() -> None:
    assert BACKWARD.choose_by_heuristic(workload(), H100).family == "sm90"
    assert BACKWARD.choose_by_heuristic(workload(), A100).family == "sm80"
    assert BACKWARD.choose_by_heuristic(workload(), (8, 9)).family == "sm80"
    assert BACKWARD.choose_by_heuristic(workload(), None).family == "sm80", (
        "the emulator's is the plainest"
    )
    for d_head in (64, 96, 128, 192, 256):
        for capability in (H100, A100, None):
            config = BACKWARD.choose_by_heuristic(workload(d_head), capability)
            assert (config.dtype, config.d_head) == (DType.BF16, d_head)
    assert BACKWARD.choose_by_heuristic(workload(72), A100).d_head == 96


def test_what_a_family_does_not_compute_another_does() -> None:
    biased = workload(variant=Variant(bias=True))
    for variant in (Variant(bias=True), Variant(score=7)):
        assert BACKWARD.choose_by_heuristic(workload(variant=variant), H100).serves_variant(variant)
    assert BACKWARD.choose_by_heuristic(biased, H100).family == "sm80"


def test_the_sm80_family_adds_dQ_up_in_memory_where_that_is_known_to_be_faster() -> None:
    traced = Variant(score=7)

    def chosen(d_head: int, capability: tuple[int, int], **more: bool) -> tuple[str, int]:
        config = BACKWARD.choose_by_heuristic(workload(d_head, traced, **more), capability)
        return config.scheme, getattr(config, "n_stages", 0)

    assert chosen(128, H100) == chosen(256, H100) == ("sums", 2)
    assert chosen(128, A100) == chosen(256, A100) == ("sums", 1), "of two stages is no room"
    assert chosen(64, A100)[0] == chosen(128, (8, 6))[0] == "", "of two blocks, or of one, is none"
    assert chosen(128, H100, deterministic=True)[0] == ""
    for variant in (Variant(bias=True), Variant(bias=True, causal=True)):
        assert BACKWARD.choose_by_heuristic(workload(128, variant), H100).scheme == ""


SUMS = Sm80SumsBackwardKernelConfig(DType.FP16, 128, 64, 128, 8, 1, 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"d_head": 80}, "d_head is 80; supported are 64, 96, 128, 192, 256."),
        ({"B_r": 128}, "B_r is 128; supported are 64."),
        ({"B_c": 256}, "B_c is 256; supported are 64, 128."),
        ({"n_stages": 3}, "n_stages is 3; supported are 1, 2."),
        ({"column_groups": 3}, "column_groups is 3; supported are 1, 2, 4."),
        ({"B_c": 64, "column_groups": 1}, "B_c is 64; each of the 8 warps, 1 of which share"),
        ({"d_head": 96, "column_groups": 4}, "the 6 pairs of n tiles of d_head 96"),
        ({"d_head": 256}, "registers per thread"),
        ({"n_stages": 2}, "bytes of shared memory"),
    ],
)
def test_problems_of_sums_say_why(change: dict[str, int], reason: str) -> None:
    assert not SUMS.problems("sm_80")
    problems = replace(SUMS, **change).problems("sm_80")
    assert any(reason in problem for problem in problems), problems


SHARING = heuristic(DType.FP16, 192)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n_warpgroups": 2, "B_c": 64}, "with d_head 192, 3 warpgroups share the keys of a block"),
        ({"B_c": 192}, "each of the 3 warpgroups computes the scores of 32 keys, so it must be 96"),
        ({"V_steps_in_registers": 1}, "registers have room for 0."),
        ({"Q_stages": 1}, "Q_stages is 1; warpgroups that share keys use 2 blocks of Q at a time."),
        ({"dO_stages": 2}, "so it must be 1."),
        ({"turns": 1}, "turns is 1; warpgroups that share keys do without."),
        ({"skip_unseen": True}, "skip_unseen is True; warpgroups that share keys do without."),
        ({"split_groups": True}, "split_groups is True; warpgroups that share keys do without."),
        ({"Q_stages": 3}, "bytes of shared memory"),
    ],
)
def test_problems_of_warpgroups_that_share_keys_say_why(
    change: dict[str, int], reason: str
) -> None:
    assert not SHARING.problems()
    problems = replace(SHARING, **change).problems()
    assert any(reason in problem for problem in problems), problems


def test_wide_rows_have_warpgroups_that_share_keys() -> None:
    for heads, causal, same in product((8, 2), (False, True), (False, True)):
        problem = Problem(DType.BF16, 192, 2, 8, heads, 1500, 1500)
        asked = BackwardWorkload(problem, Variant(causal=causal), same)
        chosen = BACKWARD.choose_by_heuristic(asked, H100)
        assert isinstance(chosen, Sm90BackwardKernelConfig) and chosen.shares_keys


def test_long_rows_have_persistent_blocks_from_so_many_tiles_on() -> None:
    """Blocks are persistent anyway where masks are causal."""
    for (d_head, n), causal in product(((128, 1500), (192, 2100)), (False, True)):
        for batch in (1, 8):
            problem = Problem(DType.BF16, d_head, batch, 8, 8, n, n)
            asked = BackwardWorkload(problem, Variant(causal=causal))
            chosen = BACKWARD.choose_by_heuristic(asked, H100)
            assert isinstance(chosen, Sm90BackwardKernelConfig)
            assert chosen.persistent == (causal or batch == 8)


def test_tiles_that_sm_80_has_no_room_for_are_built_for_newer_gpus() -> None:
    assert SUMS.plainest_gpu == "sm_80"
    larger = replace(SUMS, n_stages=2)
    assert larger.plainest_gpu == "sm_90a"
    assert larger.is_buildable() and not larger.is_buildable("sm_80")


def test_deterministic_gradients_have_a_kernel_for_them() -> None:
    for d_head in (64, 96, 128, 192, 256):
        for capability in (H100, A100, None):
            config = BACKWARD.choose_by_heuristic(workload(d_head, deterministic=True), capability)
            assert config.is_deterministic


# (d_head, heads, KV heads, batch, length) -> whether sums are in order. An H200 measured each of
# these ways faster than the other (benchmarks/results/h200/2026-11-28/choices/, grouped/;
# 2026-11-29/dense_orders.csv).
CAUSAL_CASES = {
    (128, 32, 8, 16, 512): True,
    (128, 32, 8, 4, 1024): True,
    (128, 32, 8, 7, 2000): True,
    (128, 32, 8, 4, 2892): True,
    (128, 64, 8, 4, 3651): True,
    (128, 32, 8, 1, 8192): False,
    (128, 28, 4, 2, 11141): False,
    (128, 28, 4, 2, 2000): False,  # few tiles
    (128, 8, 1, 1, 4096): False,
    (128, 32, 4, 5, 1312): True,
    (128, 16, 16, 4, 1024): True,
    (128, 8, 8, 2, 700): True,
    (128, 16, 16, 1, 2048): False,
    (128, 24, 24, 1, 1500): False,
    (128, 16, 16, 8, 2048): False,
    (192, 16, 16, 8, 1024): True,
    (192, 16, 16, 4, 4096): False,
    (192, 16, 4, 4, 4096): True,
    (192, 32, 8, 2, 2000): True,
    (128, 32, 32, 1, 4096): False,
    (96, 32, 32, 6, 900): True,
    (96, 32, 32, 2, 2000): False,
    (64, 14, 2, 16, 500): True,
    (64, 14, 2, 2, 7514): True,
    (64, 64, 8, 1, 5852): True,
    (64, 12, 12, 16, 1024): True,
    (64, 16, 16, 2, 2000): False,
}
FULL_CASES = {
    (128, 8, 8, 2, 700): False,
    (128, 12, 12, 2, 1000): False,
    (128, 16, 16, 8, 700): False,
    (128, 16, 16, 8, 900): False,
    (128, 16, 16, 16, 1024): False,
    (128, 16, 16, 16, 500): True,
    (128, 32, 8, 8, 1024): False,
    (128, 32, 8, 4, 4096): False,
    (96, 32, 32, 8, 700): True,
    (192, 16, 16, 2, 700): False,
    (64, 16, 16, 32, 512): True,
    (64, 12, 12, 2, 900): False,
    (64, 16, 16, 6, 1993): False,
}
MEASURED = [
    *((CAUSAL, *case) for case in CAUSAL_CASES.items()),
    *((PLAIN, *case) for case in FULL_CASES.items()),
]


@pytest.mark.parametrize(("variant", "sizes", "in_order"), MEASURED, ids=str)
def test_sums_are_in_order_where_that_was_faster(
    variant: Variant, sizes: tuple[int, ...], in_order: bool
) -> None:
    d_head, heads, heads_kv, batch, n = sizes
    problem = Problem(DType.BF16, d_head, batch, heads, heads_kv, n, n)
    asked = BackwardWorkload(problem, variant)
    same = BACKWARD.choose_by_heuristic(replace(asked, deterministic=True), H100)
    chosen = BACKWARD.choose_by_heuristic(asked, H100)
    assert isinstance(chosen, Sm90BackwardKernelConfig)
    assert isinstance(same, Sm90BackwardKernelConfig) and same.dQ_in_order and same.persistent
    assert chosen.dQ_in_order == in_order
    for config in (chosen, same):
        assert config.split_groups == (heads > heads_kv and not config.shares_keys)
        assert config.skip_unseen == (d_head == 64 and not variant.causal)


def test_warpgroups_without_keys_compute_nothing_under_full_masks_at_d_head_64() -> None:
    """The last block of 192 keys often leaves one or two of three warpgroups without keys."""
    for variant, d_head, skips in (
        (PLAIN, 64, True),
        (PLAIN, 96, False),
        (CAUSAL, 64, False),
        (Variant(varlen=True), 64, False),
    ):
        chosen = BACKWARD.choose_by_heuristic(workload(d_head, variant, seq_len=1200), H100)
        assert isinstance(chosen, Sm90BackwardKernelConfig)
        assert chosen.skip_unseen == skips


OF_TWO = {PLAIN: (40, 128, 193, 256, 577, 640), CAUSAL: (40, 128, 193, 256)}
OF_THREE = {PLAIN: (129, 192, 257, 576, 641, 1024), CAUSAL: (129, 192, 257, 577, 640)}


@pytest.mark.parametrize(
    ("variant", "length", "warpgroups"),
    [
        (variant, length, n)
        for n, lengths in ((2, OF_TWO), (3, OF_THREE))
        for variant, of_mask in lengths.items()
        for length in of_mask
    ],
)
def test_short_keys_at_d_head_64_have_tiles_that_they_fill(
    variant: Variant, length: int, warpgroups: int
) -> None:
    """Tiles of two warpgroups have 128 keys, those of three 192. Of sequences of unlike lengths
    nothing is known but the longest, and a window hides most keys of a tile."""
    chosen = BACKWARD.choose_by_heuristic(workload(64, variant, seq_len=length), H100)
    assert isinstance(chosen, Sm90BackwardKernelConfig)
    assert chosen.n_warpgroups == warpgroups and not chosen.problems()
    for other in (Variant(varlen=True), Variant(causal=True, window=True)):
        chosen = BACKWARD.choose_by_heuristic(workload(64, other, seq_len=length), H100)
        assert isinstance(chosen, Sm90BackwardKernelConfig) and chosen.n_warpgroups == 3


def test_short_windows_leave_out_what_they_hide() -> None:
    window = Variant(causal=True, window=True)
    for d_head in (64, 96, 128):
        chosen = BACKWARD.choose_by_heuristic(workload(d_head, window, seq_len=9000), H100)
        assert isinstance(chosen, Sm90BackwardKernelConfig)
        assert chosen.dQ_in_order == chosen.skip_unseen == (d_head == 64)


def test_what_no_family_takes_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"compute capability 7\.5; the kernels need 8\.0"):
        BACKWARD.choose_by_heuristic(workload(), (7, 5))
    with pytest.raises(ValueError, match="264"):
        BACKWARD.choose_by_heuristic(workload(264), A100)


KEY_TABLES = Path(__file__).parents[2] / "benchmarks/results/h200/2026-11-29/key_tables.csv"
CLOSE = 1.03


def test_sums_of_unlike_sequences_are_in_order_where_that_was_faster() -> None:
    """The choice is no slower than the other order by more than 3%."""
    times: dict[tuple[str, ...], dict[str, float]] = {}
    with KEY_TABLES.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["tiles"] == "table" and not row["parts"]:
                shape = ("d_head", "heads", "heads_kv", "sequences", "longest", "mask")
                times.setdefault(tuple(row[name] for name in shape), {})[row["kernel"]] = float(
                    row["in_turn_us"]
                )
    assert len(times) == 25
    for (*sizes, mask), measured in times.items():
        d_head, heads, heads_kv, batch, n = map(int, sizes)
        variant = Variant(causal=mask == "causal", varlen=True)
        problem = Problem(DType.BF16, d_head, batch, heads, heads_kv, n, n)
        asked = BackwardWorkload(problem, variant, unlike=True)
        chosen = BACKWARD.choose_by_heuristic(asked, H100)
        assert isinstance(chosen, Sm90BackwardKernelConfig)
        order, other = ("in order", "any order")[:: 1 if chosen.dQ_in_order else -1]
        assert measured[order] <= CLOSE * measured[other], (sizes, mask)
