"""The runner of cases, with fake candidates and clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from flashsmith.errors import GpuLostError
from flashsmith.lab.bench import columns, runner
from flashsmith.lab.bench.cases import Case, workload_of
from flashsmith.lab.bench.columns import row_of
from flashsmith.lab.bench.monitor import Sample, Sustained
from flashsmith.lab.bench.operations import base
from flashsmith.lab.bench.operations.base import OperationBench, OperationPeer
from flashsmith.lab.bench.results import BACK_TO_BACK, FAILED, IN_TURN, MISSING, WRONG
from flashsmith.lab.bench.runner import IN_GRAPH, CaseResult, Runner
from flashsmith.lab.bench.timer import Timing
from support.bench import times_of

MS = {"flashsmith": 2.0, "same": 3.0, "far": 1.0, "fa2": 3.0, "fa3": 1.0, "fa3_same": 6.0}


@dataclass(frozen=True)
class Given(base.Given):
    flop: float = 6e9
    n_bytes: float = 4e6
    tolerance: float = 0.1

    def error_of(self, result: float) -> float:
        return result


@dataclass(frozen=True)
class Package:
    missing: str = ""

    def why_missing(self) -> str:
        return self.missing

    def build(self) -> str:
        return "1.0"


def broken(_: Given) -> Any:
    raise RuntimeError("no kernel image")


def gives(result: float) -> Callable[[Given], Callable[[], float]]:
    return lambda given: lambda: result


OPERATION = OperationBench(
    prepare=lambda case, device: Given(),
    ours={
        "flashsmith": gives(0.0),
        "same": gives(0.0),
        "far": gives(0.5),
        "broken": broken,
        "dense only": lambda given: None,
    },
    kernels="backward",
    of_config=lambda config, given: lambda: 0.0,
    peers={
        **{name: OperationPeer(Package(), gives(0.0)) for name in ("fa2", "fa3", "fa3_same")},
        "absent": OperationPeer(Package("not installed"), broken),
    },
    beside={"same": ("fa3_same", "absent")},
)
ALL = (*OPERATION.ours, *OPERATION.peers)


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replaces the operation and the timers; returns the candidates of each timed run, in order."""
    orders: list[list[str]] = []

    def timed(clock: Callable[..., dict[str, Timing]], runs: Any, **_: Any) -> dict[str, Timing]:
        orders.append(list(runs))
        return clock(runs)

    monkeypatch.setattr(runner, "BENCHES", {"played": OPERATION})
    for factor, name in enumerate(("time_interleaved", "time_back_to_back"), 1):
        clock = times_of({each: ms * factor for each, ms in MS.items()})
        monkeypatch.setattr(runner, name, partial(timed, clock))
    monkeypatch.setattr(runner, "gpu_answers", lambda: True)
    return orders


def measured(
    *candidates: str, device: str = "cuda", regimes: tuple[str, ...] = (IN_TURN,)
) -> dict[str, CaseResult]:
    case = Case("played", workload_of(64, 1, 2, 64), candidates or ALL)
    return {each.name: each for each in Runner(device).measure(case, regimes)}


def test_what_is_not_right_is_told_and_not_timed(orders: list[list[str]]) -> None:
    found = measured()
    right = [name for name in MS if name != "far"]
    assert [name for name, each in found.items() if each.is_right] == right
    assert orders == [right] and [*found["flashsmith"].times] == [IN_TURN]
    others = {name: each.checked for name, each in found.items() if not each.is_right}
    assert {name: (each.status, each.reason) for name, each in others.items()} == {
        "far": (WRONG, "error 0.5, allowed 0.1"),
        "broken": (FAILED, "RuntimeError: no kernel image"),
        "absent": (MISSING, "not installed"),
    }
    assert not found["far"].times and found["far"].error == 0.5
    assert "dense only" not in found


def test_a_candidate_that_breaks_the_gpu_ends_the_process(
    orders: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "gpu_answers", lambda: False)
    with pytest.raises(GpuLostError, match="no kernel image") as raised:
        measured("flashsmith", "broken")
    assert raised.value.culprit == "broken"
    assert not measured("broken", device="cpu")["broken"].is_right


def test_a_clock_that_fails_is_a_reason_and_no_end(
    orders: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> dict[str, Timing]:
        raise RuntimeError("launch failure")

    monkeypatch.setattr(runner, "time_back_to_back", fails)
    ours = measured("flashsmith", "far", regimes=(BACK_TO_BACK,))
    assert {name: each.checked.status for name, each in ours.items()} == {
        "flashsmith": FAILED,
        "far": WRONG,
    }
    assert "timed with others: RuntimeError: launch" in ours["flashsmith"].checked.reason


def test_a_row_has_rates_and_the_ratio_to_the_peer_that_is_beside_it(
    orders: list[list[str]],
) -> None:
    columns = ("candidate", "in_turn_ms", "in_turn_us", "in_turn_tflops", "in_turn_of_best_peer")
    rows = {name: [*row_of(columns, each).values()] for name, each in measured().items()}
    assert rows["flashsmith"] == ["flashsmith", "2.0000", "2000.00", "3.0", "0.500"]  # of all peers
    assert rows["same"][-1] == "2.000"  # its base is the deterministic peer
    assert rows["fa2"][-1] == ""
    without = measured("same", "fa2", "fa3")["same"]
    assert without.rival_ms(IN_TURN) == 1.0
    assert measured("same")["same"].rival_ms(IN_TURN) is None


def test_candidates_rotate_from_time_to_time(orders: list[list[str]]) -> None:
    names = ("flashsmith", "fa2", "fa3")
    case, beside = Case("played", workload_of(64, 1, 2, 64), names), Runner("cuda")
    for _ in range(4):
        assert [each.name for each in beside.measure(case, [IN_TURN])] == [*names]
    assert [order[0] for order in orders] == [*names, names[0]]
    assert orders[1] == ["fa2", "fa3", "flashsmith"]


def test_regimes_have_times_of_their_own(orders: list[list[str]]) -> None:
    ours = measured("flashsmith", "fa3", regimes=(IN_TURN, BACK_TO_BACK))["flashsmith"]
    assert {regime: timing.ms for regime, timing in ours.times.items()} == {
        IN_TURN: 2.0,
        BACK_TO_BACK: 4.0,
    }
    assert [ours.rival_ms(regime) for regime in (IN_TURN, BACK_TO_BACK)] == [1.0, 2.0]


def test_a_graph_has_a_run_of_each_layer(
    orders: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [Given(n_bytes=n) for n in (1.0, 2.0, 3.0)]
    asked: dict[str, list[float]] = {}

    def in_graph(candidates: Mapping[str, Sequence[Callable[[], float]]]) -> dict[str, Timing]:
        asked.update({name: [run() for run in runs] for name, runs in candidates.items()})
        return {name: Timing(1.0, 1.0, 1.0) for name in candidates}

    by_layer = {
        "flashsmith": lambda given: lambda: given.n_bytes / 1000,
        "dense only": lambda _: None,
    }
    operation = replace(OPERATION, prepare=lambda *_: layers[0], ours=by_layer)
    monkeypatch.setattr(runner, "BENCHES", {"played": operation})
    monkeypatch.setattr(runner, "time_in_graph", in_graph)
    monkeypatch.setattr(Given, "layers", lambda self: layers)
    found = measured("flashsmith", "dense only", "fa3", regimes=(IN_GRAPH,))
    assert asked == {"flashsmith": [0.001, 0.002, 0.003], "fa3": [0.0, 0.0, 0.0]}
    assert {name: each.times[IN_GRAPH].ms for name, each in found.items()} == dict.fromkeys(
        asked, 1.0
    )


def test_the_emulator_checks_and_times_nothing(orders: list[list[str]]) -> None:
    found = measured(device="cpu")
    assert not orders and not found["flashsmith"].times
    assert found["far"].error == 0.5
    assert row_of(["in_turn_ms", "error"], found["far"]) == {"in_turn_ms": "", "error": "0.5"}


def test_what_is_no_number_is_wrong(
    orders: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Given, "error_of", lambda self, result: float("nan"))
    assert not measured("flashsmith")["flashsmith"].is_right


def test_a_kernel_is_a_candidate_of_its_operation_alone(orders: list[list[str]]) -> None:
    kernel = "(BF16, 64, 128, 64, 4): backward+stages_1"
    assert list(measured(kernel, device="cpu")) == [kernel]
    for other in ("(BF16, 64, 16, 32, 2): decode+stages_3+blocks_4", "fa5"):
        with pytest.raises(ValueError, match=r"is not known; supported: flashsmith, same"):
            measured(other)


def test_columns_of_a_progression(orders: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_matmul_tflops", lambda dtype: 700.0)
    sustained = [Sustained(4.0, Sample(1500.0, 600.0)), Sustained(4.0, Sample())]
    monkeypatch.setattr(runner, "sustain", lambda run: sustained.pop(0))
    names = ("ms", "ms_p20", "ms_p80", "percent_of_fa2", "percent_of_cublas", "cublas_tflops")
    found = measured("flashsmith", "fa2")
    rows = [[*row_of(names, each).values()] for each in found.values()]
    assert rows[0] == ["2.00000", "1.00000", "4.00000", "150.0", "0.4", "700.0"]
    assert rows[1][3] == "100.0"
    ends = ("tflops", "sm_clock_mhz", "power_w")
    names = (*(f"sustained_{end}" for end in ends), "joules_per_tflop")
    rows = [[*row_of(names, each).values()] for each in found.values()]
    assert rows == [["1.5", 1500.0, 600.0, "400.000"], ["1.5", None, None, ""]]
