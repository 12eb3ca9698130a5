"""`flashsmith run`: backward kernels beside forward kernels, and where backward kernels are
refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flashsmith import settings
from flashsmith.configs import CAUSAL, FULL, DType, KernelId, Workload
from flashsmith.configs.registry import BACKWARD
from flashsmith.configs.workload import BackwardWorkload
from flashsmith.errors import EmulatorFault
from flashsmith.lab.bench.operations.forward_kernels import Checker
from flashsmith.lab.bench.timer import Timing
from flashsmith.lab.commands import run as lab_run
from flashsmith.lab.commands.inputs import Inputs
from flashsmith.lab.commands.run_backward import check_backward, chosen_backward
from flashsmith.lab.commands.run_result import Result
from flashsmith.problem import Problem
from flashsmith.runtime import BackwardKernel, GradientTensors
from support.cli import PLAIN, invoke_json, make_inputs, refused

WORKLOAD = Workload(Problem.square(DType.FP16, 64, 1, 2, 64), FULL)
CHOSEN = chosen_backward(WORKLOAD, "cpu")


def test_the_heuristic_backward_is_checked_and_counted_whole() -> None:
    workload = Workload(Problem.square(DType.FP16, 64, 1, 2, 128), FULL)  # whole tiles only
    result, runs = check_backward(CHOSEN, workload, "cpu", seed=0)
    assert result.ok and 0 < result.error < result.tolerance < 0.01, result
    assert (result.kernel, result.operation) == (str(CHOSEN), "backward")
    assert list(runs) == [result.kernel]
    # dQ takes three products, dK and dV take four; each is 128 x 128 x 64 for 2 heads, in mma of 16
    # x 8 x 16.
    assert result.counts["mma"] == 7 * 2 * 128 * 128 * 64 // (16 * 8 * 16)


def test_the_worst_gradient_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    call = BackwardKernel.__call__

    def spoiled(self: BackwardKernel, tensors: GradientTensors, *rest: Any, **more: Any) -> float:
        elapsed = call(self, tensors, *rest, **more)
        tensors.dk[0, 3, 1, 7] += 1
        tensors.dv[0, 5, 1, 7] += 0.5
        return elapsed

    monkeypatch.setattr(BackwardKernel, "__call__", spoiled)
    result, runs = check_backward(CHOSEN, WORKLOAD, "cpu", seed=0)
    assert not result.ok and not runs
    assert result.worst.startswith("dk at (0, 3, 1, 7)")
    assert result.error == pytest.approx(1, abs=0.01)


def test_a_fault_is_a_wrong_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: Any, **__: Any) -> float:
        raise EmulatorFault("a race at shared address 16")

    monkeypatch.setattr(BackwardKernel, "__call__", faulty)
    result, runs = check_backward(CHOSEN, WORKLOAD, "cpu", seed=0)
    assert (result.ok, result.worst, runs) == (False, "a race at shared address 16", {})


@pytest.fixture
def without_forward(monkeypatch: pytest.MonkeyPatch) -> list[KernelId]:
    """Prevents forward kernels from running; returns the list of kernels that are loaded."""
    loaded: list[KernelId] = []
    monkeypatch.setattr(lab_run, "load_kernels", lambda kernels, *_: loaded.extend(kernels))
    monkeypatch.setattr(
        lab_run, "check_kernels", lambda instances, _: ([Result("one", 0, 1, ok=True)], {})
    )
    monkeypatch.delenv(settings.KERNELS.name, raising=False)
    return loaded


def test_run_has_a_backward_where_nothing_is_named(without_forward: list[KernelId]) -> None:
    sizes = ("--seq-len", 64, "--d-head", 64, "--device", "cpu")
    report = invoke_json("run", *sizes, "--mask", "causal")
    one, backward = report["kernels"]
    assert (one["operation"], backward["operation"], report["ok"]) == ("forward", "backward", True)
    chosen = KernelId(
        BACKWARD.choose_by_heuristic(BackwardWorkload(WORKLOAD.problem, CAUSAL), None), CAUSAL
    )
    assert backward["kernel"] == str(chosen) and chosen in without_forward
    assert len(invoke_json("run", *sizes, "-k", PLAIN)["kernels"]) == 1


def test_a_backward_is_timed_beside_that_of_fa2(monkeypatch: pytest.MonkeyPatch) -> None:
    def fixed_times(candidates: dict[str, Callable[[], object]]) -> dict[str, Timing]:
        return {name: Timing(6.0 if name == "fa2 backward" else 4.0, 1, 9) for name in candidates}

    monkeypatch.setattr(lab_run, "time_interleaved", fixed_times)
    monkeypatch.setattr(lab_run, "fa2_backward", lambda _: lambda: None)
    checker = Checker(WORKLOAD, "cpu", Inputs(*make_inputs().values()))
    result = Result("one", ok=True, operation="backward")
    assert lab_run.time_kernels({"one": lambda: None}, [result], checker) == 4
    assert result.tflops == pytest.approx(10 * 2 * 64 * 64 * 64 / 4e-3 / 1e12)
    assert result.fa2_percent == 150


@pytest.mark.parametrize("word", [str(CHOSEN), "backward"])
@pytest.mark.parametrize(
    "command", [("run", "-k"), ("bench", "-k"), ("tune", "--emulator-counts", "-k")]
)
def test_commands_for_forward_kernels_refuse_backwards(command: tuple[str, ...], word: str) -> None:
    message = refused(*command, word)
    assert "is one of the backward; expected one of the forward" in message
