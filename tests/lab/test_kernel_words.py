"""The kernels that the key of a set stands for, at a head dimension."""

from __future__ import annotations

from typing import Any

import pytest

from flashsmith import settings
from flashsmith.configs import DType
from flashsmith.configs.family import Family
from flashsmith.configs.registry import FORWARD
from flashsmith.configs.workload import Workload
from flashsmith.lab.commands.kernel_words import named_forward_kernel, select_instances
from support.cli import invoke_json, refused


@pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("family", FORWARD.families, ids=lambda family: family.name)
def test_a_tuning_space_is_that_of_its_d_head(family: Family, d_head: int) -> None:
    chosen = select_instances([family.sets.keys.tuning], dtype=DType.BF16, d_head=d_head)
    configs = [instance.config for instance in chosen]
    assert configs and {(cfg.dtype, cfg.d_head) for cfg in configs} == {(DType.BF16, d_head)}
    assert not [cfg for cfg in configs if cfg.problems(cfg.minimum_gpu)]
    heuristic = family.heuristic(Workload.square(DType.BF16, d_head, 4096))
    tiles = {(cfg.B_r, cfg.B_c) for cfg in configs}
    assert (heuristic.B_r, heuristic.B_c) in tiles


def test_eight_warps_are_tried_where_four_have_no_room_for_so_many_rows() -> None:
    def warps(d_head: int) -> set[tuple[int, int]]:
        chosen: list[Any] = [each.config for each in select_instances(["tune"], d_head=d_head)]
        return {(cfg.B_r, cfg.n_warps) for cfg in chosen}

    assert warps(128) == {(64, 4), (128, 4)}
    assert warps(256) == {(64, 4), (128, 8)}


def test_other_sets_are_taken_at_the_d_head() -> None:
    (first, *_) = select_instances(["prog"], d_head=64)
    assert first.config.d_head == 64


BACKWARD = "(FP16, 64, 64, 64, 4): backward+stages_1"


def test_kernels_of_the_backward_are_chosen_only_where_they_are_taken() -> None:
    (chosen,) = select_instances([BACKWARD], forward_only=False)
    assert str(chosen) == BACKWARD
    for choose in (lambda: select_instances([BACKWARD]), lambda: named_forward_kernel(BACKWARD)):
        with pytest.raises(ValueError, match=r"kernel .*: backward\+stages_1 is one of the backw"):
            choose()


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "--emulator-counts", "--d-head", "64", "-k"),
        ("tune", "--d-head", "64", "-k"),
        ("profile", "--d-head", "64", "-k"),
        ("configs", "--all-blocks"),
    ],
    ids=lambda command: command[0],
)
def test_commands_for_the_forward_refuse_kernels_of_the_backward(command: tuple[str, ...]) -> None:
    message = refused(*command, BACKWARD)
    assert "is one of the backward; expected one of the forward" in message


def test_configs_lists_kernels_of_the_backward() -> None:
    (found,) = invoke_json("configs", BACKWARD)["configs"]
    assert found["name"] == BACKWARD and found["legal"] and found["split_dK_dV"] is False


@pytest.mark.parametrize("word", ["", " "])
@pytest.mark.parametrize(
    "command",
    [
        ("report", "--json"),
        ("configs",),
        ("configs", "--built"),
        ("build", "--target", "emulator", "-k"),
        ("run", "--device", "cpu", "-k"),
        ("soak", "--device", "cpu", "-k"),
        ("bench", "--emulator-counts", "--d-head", "64", "-k"),
        ("tune", "--emulator-counts", "--d-head", "64", "-k"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_an_empty_word_names_no_kernels(command: tuple[str, ...], word: str) -> None:
    """It is a variable of a script that was not set, more often than a wish for 85 kernels."""
    message = refused(*command, word)
    sets = ", ".join(settings.KERNEL_SETS)
    assert f"kernels is {word!r}, which names none; name a set ({sets}) or a short" in message
