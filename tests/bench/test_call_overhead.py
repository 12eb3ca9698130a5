"""The benchmark of a call's cost on the host, without a GPU: its clock, its table, its calls."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import flashsmith
from flashsmith.runtime.launch_cache import MADE, launch_cache
from support.executed import executed
from support.scripts import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("benchmarks/call_overhead.py")


class Clock:
    """A clock that advances only when a call says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_call_is_timed_in_every_turn_without_the_synchronisation(
    script: ModuleType,
) -> None:
    clock, order = Clock(), []

    def call(name: str, seconds: Iterator[float]) -> None:
        order.append(name)
        clock.now += next(seconds)

    def synchronize() -> None:
        order.append("wait")
        clock.now += 1.0

    n, warmup = script.CALLS_AT_ONCE, script.WARMUP_TURNS
    quick = iter([9e-6] * n * warmup + [2e-6] * n + [3e-6] * n + [7e-6] * n)
    slow = iter([5e-6] * n * (warmup + 3))
    runs = {"quick": lambda: call("quick", quick), "slow": lambda: call("slow", slow)}
    costs = script.measure(runs, 3, synchronize, clock)
    assert order == ["wait", *["quick"] * n, "wait", *["slow"] * n] * (warmup + 3)
    assert (costs["quick"].median, costs["quick"].minimum) == pytest.approx((3, 2))
    assert (costs["slow"].median, costs["slow"].minimum) == pytest.approx((5, 5))


def test_the_table_has_the_stamp_and_the_ratio_to_the_first(
    script: ModuleType, tmp_path: Path
) -> None:
    costs = {"torch.add": script.Cost(5.0, 4.0), "attention": script.Cost(7.5, 7.0)}
    path = tmp_path / "new" / script.FILE_NAME
    script.write_rows(path, script.rows(costs, {"gpu": "H200", "torch": "2.13"}))
    with path.open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["call"] for row in read] == list(costs)
    assert [row["us"] for row in read] == ["5.00", "7.50"]
    assert [row["min_us"] for row in read] == ["4.00", "7.00"]
    assert [row["times_torch_add"] for row in read] == ["1.00", "1.50"]
    assert {row["gpu"] for row in read} == {"H200"}


def test_every_call_runs_and_torch_add_comes_first(script: ModuleType) -> None:
    runs = script.calls(torch.device("cpu"))
    assert next(iter(runs)) == "torch.add"
    asked = {"attention", "attention seqused", "forward sm80 into o", "packed, other lengths"}
    assert asked | {"decode", "sdpa with gradients"} <= set(runs)
    for run in runs.values():
        run()


def test_packed_batches_differ_in_lengths_and_totals(script: ModuleType) -> None:
    batches = [script.packed_batch(torch.device("cpu"), seed) for seed in range(4)]
    assert len({batch[0].shape for batch in batches}) == 4
    for q, *_, offsets, _, greatest, _ in batches:
        assert offsets[-1] == q.shape[0] and offsets.diff().max() == greatest


def test_python_adds_little_to_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library does nothing here, so that a call costs what Python adds to it: about four times
    a torch.add."""
    q = torch.randn(1, 64, 1, 128).half()
    monkeypatch.setattr(launch_cache, "attend", lambda *_: MADE)
    added = executed(lambda: flashsmith.attention(q, q, q))
    assert 100 < added.instructions < 430
    assert 0 < added.c_calls <= 15
