"""Packed heads are chosen where tiles then are clearly less work, and only where they serve."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from flashsmith.configs import CAUSAL, FULL, DType, KernelId, Variant, Workload
from flashsmith.configs.registry import FORWARD
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.configs.sm90.tile_schedule import packed_if_it_pays
from flashsmith.problem import Problem, size_class, sizes_like
from flashsmith.selection.choose import choose_for
from flashsmith.selection.served import served_instances

H200 = "NVIDIA H200"
MEASURED = Path(__file__).parents[2] / "benchmarks/results/h200/2026-11-29/packed_heads.csv"
HEADS = ((14, 2), (32, 8), (28, 4), (64, 8), (16, 8), (48, 1), (8, 8))
LENGTHS = (100, 580, 793, 1441, 4000, 20_000)
NOT_PACKED = (
    FULL,
    *(
        replace(CAUSAL, **{feature: True})
        for feature in ("window", "softcap", "alibi", "bias", "sinks", "dropout")
    ),
    Variant(causal=True, varlen=True, paged=True),
    Variant(causal=True, score=1),
)


def workload(
    heads: tuple[int, int], n: int, variant: Variant = CAUSAL, d_head: int = 64, n_k: int = 0
) -> Workload:
    return Workload(Problem(DType.BF16, d_head, 37, *heads, n, n_k or n), variant)


def chosen(asked: Workload) -> Sm90ForwardKernelConfig:
    config = choose_for(FORWARD, asked, H200).config
    assert isinstance(config, Sm90ForwardKernelConfig)
    return config


@pytest.mark.parametrize(("d_head", "n"), [(64, 580), (64, 793), (128, 793), (128, 1441)])
def test_short_causal_groups_are_packed(d_head: int, n: int) -> None:
    config = chosen(workload((14, 2), n, d_head=d_head))
    assert config.packed_heads and config.is_buildable()


@pytest.mark.parametrize("variant", NOT_PACKED, ids=lambda each: each.name)
def test_other_variants_are_not_packed(variant: Variant) -> None:
    for n in LENGTHS:
        assert not chosen(workload((14, 2), n, variant)).packed_heads


@pytest.mark.parametrize("heads", [(8, 8), (17, 1), (128, 1)])
def test_heads_without_groups_and_large_groups_are_not_packed(heads: tuple[int, int]) -> None:
    for n in LENGTHS:
        assert not chosen(workload(heads, n)).packed_heads


def test_rows_of_other_lengths_are_packed() -> None:
    narrow = replace(workload((14, 2), 580), variant=replace(CAUSAL, padded=True))
    narrow = replace(narrow, problem=replace(narrow.problem, d_head=56))
    assert chosen(narrow).packed_heads


def measured() -> dict[Workload, dict[str, float]]:
    """Returns microseconds by the kernel's name, of dense sequences and of packed ones."""
    found: dict[Workload, dict[str, float]] = {}
    with MEASURED.open() as lines:
        for row in csv.DictReader(lines):
            heads = int(row["heads"]), int(row["heads_kv"])
            longest = int(row["lengths"].rpartition("-")[2])
            variant = replace(CAUSAL, varlen=row["layout"] == "packed")
            asked = workload(heads, longest, variant, int(row["d_head"]))
            asked = replace(asked, problem=replace(asked.problem, batch=int(row["batch"])))
            name = row["kernel"] + "+packed_heads" * int(row["packed_heads"])
            found.setdefault(asked, {})[name] = float(row["us"])
    return found


def test_choices_are_close_to_the_fastest_that_was_measured() -> None:
    shapes = measured()
    assert len(shapes) == 16 and any(asked.variant.varlen for asked in shapes)
    for asked, times in shapes.items():
        name = str(chosen(asked))
        assert "packed_heads" in name
        if name in times:
            assert times[name] <= 1.05 * min(times.values()), (asked, name)
        else:
            assert asked.problem.seq_len_q == 5000, (asked, name)  # with another order of heads


@pytest.mark.parametrize("heads", HEADS)
def test_long_sequences_are_not_packed(heads: tuple[int, int]) -> None:
    for variant in (CAUSAL, replace(CAUSAL, varlen=True)):
        assert not chosen(workload(heads, 20_000, variant)).packed_heads


def test_chosen_kernels_stay_packed_and_others_if_their_tiles_save_work() -> None:
    asked, long = workload((14, 2), 580), workload((14, 2), 20_000)
    wide = chosen(workload((14, 2), 4000))
    whole, packed = (replace(wide, packed_heads=packs) for packs in (False, True))
    assert packed_if_it_pays(packed, asked) == packed
    assert packed_if_it_pays(whole, asked) == packed
    assert packed_if_it_pays(packed, long) == packed_if_it_pays(whole, long) == whole


def test_a_class_is_of_all_sizes_that_share_a_choice() -> None:
    for n in (0, 1, 16, 17, 18, 577, 640, 641, 1024, 4000):
        assert n in sizes_like(n)
        assert {size_class(each) for each in sizes_like(n)} == {size_class(n)}
        around = (sizes_like(n)[0] - 1, sizes_like(n)[-1] + 1)
        assert all(each < 0 or size_class(each) != size_class(n) for each in around)


def test_a_packed_kernel_of_a_table_serves_as_the_sizes_ask() -> None:
    """The tuner keeps what the heuristic chose for one of a bucket's shapes."""
    packed = chosen(workload((14, 2), 580))
    assert packed.packed_heads
    assert not packed_if_it_pays(packed, workload((8, 8), 580)).packed_heads
    assert not packed.adapted_to(Variant(causal=True, alibi=True)).packed_heads
    assert packed.adapted_to(CAUSAL) == packed


def test_packed_kernels_are_built_ahead() -> None:
    served = served_instances(H200, dtypes=[DType.BF16], d_heads=[64, 128])
    for heads, n, d_head in product(HEADS, LENGTHS, (64, 128)):
        assert KernelId(chosen(workload(heads, n, d_head=d_head)), CAUSAL) in served
    assert not any(getattr(k.config, "packed_heads", False) for k in served if k.variant == FULL)


def test_a_group_of_more_heads_than_rows_is_not_served() -> None:
    packed = chosen(workload((14, 2), 580))
    large = workload((2 * 65, 2), 580)
    assert packed.why_not(large) == "it packs up to 64 heads, not 65"
    assert not packed.has_room_for(large.problem)
    assert not packed.why_not(workload((2 * 64, 2), 580))
