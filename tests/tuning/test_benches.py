"""The tuner's lab for decode and the backward, on the emulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from flashsmith.configs import CAUSAL, FULL, KernelId
from flashsmith.configs.decode import work_tiles
from flashsmith.configs.operation import Operation
from flashsmith.configs.registry import BACKWARD, DECODE
from flashsmith.configs.workload import BackwardWorkload, DecodeWorkload, WorkTiles
from flashsmith.dtype import DType
from flashsmith.lab.bench.timer import Timing
from flashsmith.lab.tuning import benches, lab
from flashsmith.lab.tuning.benches import DecodeBench, Shape, benches_of, shapes_for
from flashsmith.lab.tuning.lab import KernelLab
from flashsmith.ops.bound_decode import BoundDecode
from flashsmith.problem import Problem
from flashsmith.runtime import DecodeTensors
from support.tuning import fake_timer

FEW = DecodeWorkload(DType.FP16, 64, rows=16)
FP8 = DecodeWorkload(DType.FP16, 64, rows=16, fp8_cache=True)
GRADIENTS = BackwardWorkload(Problem.square(DType.FP16, 64, 1, 2, 128))
SAME_BITS = BackwardWorkload(GRADIENTS.problem, CAUSAL, deterministic=True)


def test_each_number_of_work_tiles_is_timed_where_there_are_so_many() -> None:
    batches = {
        tiles: {batch for batch, _ in shapes_for(replace(FEW, tiles=tiles), 132)}
        for tiles in WorkTiles
    }
    assert batches == {
        WorkTiles.ANY: {1, 16},
        WorkTiles.FEW: {1},
        WorkTiles.SOME: {4},
        WorkTiles.FILLING: {16},
        WorkTiles.SEVERAL: {33},
        WorkTiles.MANY: {132},
    }
    for tiles, (batch,) in list(batches.items())[1:]:
        assert work_tiles(batch, DecodeBench(FEW, Shape(1, 40), "cpu").k.shape[2], 132) is tiles


SHAPES = (Shape(1, 40), Shape(2, 17))


def small_benches(workload: DecodeWorkload, device: str) -> list[Callable[[], DecodeBench]]:
    return [partial(DecodeBench, workload, shape, device) for shape in SHAPES]


SMALL: KernelLab[Any, Any] = KernelLab(small_benches, "cpu", fake_timer)
OF_GRADIENTS: KernelLab[Any, Any] = KernelLab(benches_of(BACKWARD), "cpu", fake_timer)
KINDS: list[tuple[KernelLab[Any, Any], Operation[Any, Any], Any]] = [
    (SMALL, DECODE, FEW),
    (SMALL, DECODE, FP8),
    (
        SMALL,
        DECODE,
        DecodeWorkload(DType.BF16, 64, rows=16, fp8_cache=True, per_token_scale=True),
    ),
    (SMALL, DECODE, DecodeWorkload(DType.BF16, 64, rows=32)),
    (OF_GRADIENTS, BACKWARD, GRADIENTS),
    (OF_GRADIENTS, BACKWARD, SAME_BITS),
]


@pytest.mark.parametrize(("lab", "operation", "workload"), KINDS, ids=lambda each: str(each)[:40])
def test_the_lab_checks_and_times(
    lab: KernelLab[Any, Any], operation: Operation[Any, Any], workload: Any
) -> None:
    heuristic = operation.choose_by_heuristic(workload, None)
    lab.build({workload: [heuristic]}, lambda *_: None)
    assert lab.check(workload, [heuristic]) == {}
    assert lab.time(workload, [heuristic], 1)[heuristic].ms == pytest.approx(1.0)


def test_times_are_geometric_means_over_shapes() -> None:
    asked: list[int] = []

    def timer(runs: Any, repeats: int | None) -> dict[str, Timing]:
        asked.append(repeats or 0)
        ms = [2.0, 8.0][len(asked) - 1]
        return {name: Timing(ms, ms, ms) for name in runs}

    heuristic = DECODE.choose_by_heuristic(FEW, None)
    here: KernelLab[Any, Any] = KernelLab(small_benches, "cpu", timer)
    assert here.time(FEW, [heuristic], 7)[heuristic].ms == pytest.approx(4.0)
    assert asked == [7, 7]


@pytest.mark.parametrize(("batch", "shape"), [(1, "1 x 40"), (2, "2 x 17")])
def test_the_lab_finds_a_wrong_kernel(
    batch: int, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is wrong at one of the two shapes."""
    heuristic, call = DECODE.choose_by_heuristic(FEW, None), BoundDecode.__call__

    def off_by_a_bit(self: BoundDecode, tensors: Any, *arguments: Any) -> None:
        call(self, tensors, *arguments)
        o = DecodeTensors(*tensors).o
        o[-1, 0, 5, 7] += 0.1 * (len(o) == batch)

    monkeypatch.setattr(BoundDecode, "__call__", off_by_a_bit)
    wrong = KernelLab(small_benches, "cpu", fake_timer).check(FEW, [heuristic])
    assert wrong[heuristic].startswith(f"{shape} keys: error 0.")
    assert f"({batch - 1}, 0, 5, 7)" in wrong[heuristic]


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_the_lab_finds_a_wrong_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heuristic = BACKWARD.choose_by_heuristic(GRADIENTS, None)
    make = benches.make_launch

    def make_wrong(*arguments: Any) -> Any:
        launch = make(*arguments)
        call = launch.call

        def off_by_a_bit(workspace: torch.Tensor | None) -> None:
            call(workspace)
            launch.results.tensors[name][0, 100, 1, 7] += 0.5

        launch.call = off_by_a_bit
        return launch

    monkeypatch.setattr(benches, "make_launch", make_wrong)
    wrong = KernelLab(benches_of(BACKWARD), "cpu", fake_timer).check(GRADIENTS, [heuristic])
    assert (
        wrong[heuristic].startswith("error 0.")
        and f"; {name} at (0, 100, 1, 7)" in wrong[heuristic]
    )


def test_the_lab_says_what_a_kernel_raises_and_what_was_not_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heuristic = DECODE.choose_by_heuristic(FEW, None)

    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("no room")

    monkeypatch.setattr(benches, "decode", refuse)
    here: KernelLab[Any, Any] = KernelLab(small_benches, "cpu", fake_timer)
    assert here.check(FEW, [heuristic]) == {heuristic: "1 x 40 keys: ValueError: no room"}
    monkeypatch.setattr(lab, "load_buildable", lambda kernels, *_: {kernels[0]: "spills"})
    here.build({FEW: [heuristic]}, lambda *_: None)
    assert here.check(FEW, [heuristic]) == {heuristic: "spills"}


def test_the_lab_soaks_what_an_entry_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    heuristic, soaked = DECODE.choose_by_heuristic(FEW, None), []

    class Failure:
        case, failure = "case 1", "NaN"

    class Tally:
        failures = (Failure,)

    def soak(kernels: Any, plan: Any, device: str) -> Any:
        soaked.extend(
            (kernel, plan.tile_boundaries, plan.random_cases, device) for kernel in kernels
        )
        return dict.fromkeys(kernels, Tally)

    monkeypatch.setattr(lab, "soak", soak)
    monkeypatch.setattr(lab, "load_buildable", lambda *_: {})
    assert SMALL.soak(FEW, [heuristic]) == {heuristic: "case 1: NaN"}
    assert soaked == [(KernelId(heuristic, v), True, 0, "cpu") for v in (FULL, CAUSAL)]
    monkeypatch.setattr(lab, "load_buildable", lambda kernels, *_: dict.fromkeys(kernels, "spills"))
    assert SMALL.soak(FEW, [heuristic]) == {heuristic: "spills"}
