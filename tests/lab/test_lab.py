"""The tuner's lab: what it checks, passes to the timer and returns, and how times are ranked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashsmith.configs import (
    DType,
    FlashForwardKernelConfig,
    Workload,
    get_kernel_progression_configs,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.errors import TuningError
from flashsmith.lab.bench.results import OK, WRONG
from flashsmith.lab.bench.runner import Checked
from flashsmith.lab.bench.timer import Timing
from flashsmith.lab.tuning import benches, lab
from flashsmith.lab.tuning.benches import benches_of
from flashsmith.lab.tuning.lab import KernelLab
from flashsmith.lab.tuning.search import survivors
from flashsmith.lab.tuning.session import tuning_session
from support.workloads import changed, square

WORKLOAD = square(DType.FP16, 128, "full", 4, 16, 4096)
OTHER = changed(WORKLOAD, seq_len=1024)
A, B, C, D = get_kernel_progression_configs()[:4]
STAMP = {"gpu": "NVIDIA A100", "driver_version": "580"}


class FakeCheckers:
    """Makes checkers whose candidates record their runs; all are right except those in
    ``wrong``."""

    def __init__(self) -> None:
        self.workloads: list[Workload] = []
        self.checked: list[tuple[int, object]] = []  # seq_len, configuration
        self.ran: list[tuple[int, object]] = []
        self.wrong: set[object] = set()

    def __call__(self, workload: Workload, device: str) -> Any:
        self.workloads.append(workload)
        return _FakeChecker(self, workload)


class _FakeChecker:
    def __init__(self, all_of_them: FakeCheckers, workload: Workload) -> None:
        self._all, self.workload, self.compare = all_of_them, workload, None

    def prepare(self, cfg: FlashForwardKernelConfig) -> Checked:
        self._all.checked.append((self.workload.problem.seq_len_q, cfg))
        if cfg in self._all.wrong:
            return Checked(WRONG, "by far")

        def run() -> Any:
            self._all.ran.append((self.workload.problem.seq_len_q, cfg))

        return Checked(OK, run=run)


@pytest.fixture
def checkers(monkeypatch: pytest.MonkeyPatch) -> FakeCheckers:
    fake = FakeCheckers()
    monkeypatch.setattr(benches, "Checker", fake)
    monkeypatch.setattr(benches, "check", lambda name, make, *_: make())
    return fake


class RunningTimer:
    """Runs all candidates in order; the first takes 1 ms, the second 2 ms, and so on."""

    def __init__(self) -> None:
        self.repeats: list[int | None] = []

    def __call__(self, runs: Mapping[str, Callable[[], object]], repeats: int | None) -> Any:
        self.repeats.append(repeats)
        for run in runs.values():
            run()
        return {name: Timing(i, i - 0.5, i + 0.5) for i, name in enumerate(runs, 1)}


def test_timer_runs_each_kernel_by_its_name_in_the_order_asked(checkers: FakeCheckers) -> None:
    timer = RunningTimer()
    here = KernelLab(benches_of(FORWARD), "cpu", timer)
    assert here.check(WORKLOAD, [A, B, C]) == {}
    assert checkers.ran == []
    times = here.time(WORKLOAD, [C, A], 7)
    assert checkers.ran == [(4096, C), (4096, A)]
    assert times == {C: Timing(1, 0.5, 1.5), A: Timing(2, 1.5, 2.5)}
    assert timer.repeats == [7]


def test_what_was_checked_is_not_checked_again_before_it_is_timed(checkers: FakeCheckers) -> None:
    here = KernelLab(benches_of(FORWARD), "cpu", RunningTimer())
    here.check(WORKLOAD, [A, B])
    here.time(WORKLOAD, [A, B], 3)
    here.time(WORKLOAD, [B], 9)
    assert checkers.checked == [(4096, A), (4096, B)]
    assert checkers.workloads == [WORKLOAD]


def test_after_an_interruption_kernels_are_checked_before_they_are_timed(
    checkers: FakeCheckers,
) -> None:
    here = KernelLab(
        benches_of(FORWARD), "cpu", RunningTimer()
    )  # in a new process the journal still knows the checks
    here.time(WORKLOAD, [A], 3)
    here.time(WORKLOAD, [A, B], 9)
    assert checkers.checked == [(4096, A), (4096, B)]
    assert checkers.ran == [(4096, A)] * 2 + [(4096, B)]


def test_another_problem_has_runs_of_its_own(checkers: FakeCheckers) -> None:
    here = KernelLab(benches_of(FORWARD), "cpu", RunningTimer())
    here.check(WORKLOAD, [A, B])
    here.time(OTHER, [A], 3)
    here.time(OTHER, [B], 3)
    here.time(WORKLOAD, [B], 3)
    assert checkers.ran == [(1024, A), (1024, B), (4096, B)]
    assert checkers.workloads == [WORKLOAD, OTHER, WORKLOAD]


def test_a_kernel_that_is_wrong_now_is_not_timed(checkers: FakeCheckers) -> None:
    here = KernelLab(benches_of(FORWARD), "cpu", RunningTimer())
    checkers.wrong = {B}
    assert here.check(WORKLOAD, [A, B]) == {B: "wrong: by far"}
    with pytest.raises(TuningError, match="was right before and is not now: wrong: by far"):
        here.time(WORKLOAD, [A, B], 3)
    assert checkers.ran == []


def test_on_a_gpu_kernels_are_timed_in_turn_with_a_pause(
    checkers: FakeCheckers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def time_interleaved(runs: Mapping[str, object], **options: Any) -> dict[str, Timing]:
        asked.update(options, names=[*runs])
        return dict.fromkeys(runs, Timing(1.0, 1.0, 1.0))

    monkeypatch.setattr(lab, "time_interleaved", time_interleaved)
    here = KernelLab(benches_of(FORWARD), "cpu")
    here.time(WORKLOAD, [B, A], 30)
    assert asked == {"names": [str(B), str(A)], "repeats": 30, "warmup": 1, "pause": 0.001}


def test_on_a_gpu_finalists_are_timed_back_to_back(
    checkers: FakeCheckers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        lab, "time_back_to_back", lambda runs: dict.fromkeys(runs, Timing(2.0, 2.0, 2.0))
    )
    times = KernelLab(benches_of(FORWARD), "cpu").time(WORKLOAD, [B, A], None)
    assert times == {B: Timing(2.0, 2.0, 2.0), A: Timing(2.0, 2.0, 2.0)}


# ---- ranking: both percentiles have another order than the medians ----

TIMES = {
    A: Timing(3.0, low=1.0, high=5.0),
    B: Timing(1.0, low=0.9, high=9.0),
    C: Timing(2.0, low=0.5, high=8.0),
    D: Timing(4.0, low=0.1, high=4.5),
}
STEADY = {B: Timing(20.0, 20, 20), D: Timing(4.0, 4, 4)}  # B and D reach the last round


def test_survivors_are_ranked_by_the_median() -> None:
    one_tile = {replace(cfg, B_r=64, B_c=64): timing for cfg, timing in TIMES.items()}
    ranked = survivors(one_tile, {replace(B, B_r=64, B_c=64)})
    assert ranked[0] == replace(B, B_r=64, B_c=64)
    assert len(ranked) == 2
    assert ranked[1] == replace(C, B_r=64, B_c=64)


class LabOfTimes:
    def build(self, *_: Any) -> None: ...

    def check(self, workload: Workload, configs: Sequence[object]) -> dict[Any, str]:
        return {}

    def time(
        self, workload: Workload, configs: Sequence[Any], repeats: int | None
    ) -> dict[Any, Timing]:
        return {cfg: (STEADY if repeats is None else TIMES)[cfg] for cfg in configs}

    def soak(self, workload: Workload, configs: Sequence[object]) -> dict[Any, str]:
        return {}


def test_a_table_is_ranked_by_both_regimes(tmp_path: Path) -> None:
    """B is the fastest in turn, D by the product of both regimes, which is 16 against 20."""
    with tuning_session(FORWARD, tmp_path / "table.json", STAMP) as session:
        table = session.run({WORKLOAD: [A, B, C, D]}, LabOfTimes(), lambda *_: None)
    (entry,) = table.entries.values()
    assert [row.config for row in entry.ranked] == [D, B]
    assert [(row.ms, row.ms_back_to_back) for row in entry.ranked] == [(4, 4), (1, 20)]
    assert entry.heuristic_ratio == 1.0  # the heuristic chooses D
