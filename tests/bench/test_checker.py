"""The checks of candidates, and the times of one shape with replaced clocks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from flashsmith import reference
from flashsmith.configs import parse_kernel_name_into_config
from flashsmith.lab.bench import monitor as monitor_module
from flashsmith.lab.bench import runner
from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.monitor import GpuMonitor, Sample
from flashsmith.lab.bench.operations.forward_kernels import (
    FORWARD_KERNELS,
    Candidate,
    Checker,
)
from flashsmith.lab.bench.peers import PEERS
from flashsmith.lab.bench.qkv import make_qkv
from flashsmith.lab.bench.results import BACK_TO_BACK, FAILED, KERNEL, OK, PEER
from flashsmith.lab.bench.runner import Checked, Runner, check
from flashsmith.lab.bench.sweep import measure_times
from flashsmith.runtime import Kernel
from support.bench import CEILINGS, PLAIN, SMALL, fake_peer, play_peers, times_of


def broken(q: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no kernel image\nis available")


def right() -> torch.Tensor:
    return PEERS["fa2"].make(*make_qkv(SMALL.problem, "cpu"), False)().contiguous()


def wrong_at(
    index: tuple[int, ...], change: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns a peer that is right except at one index (batch, row, head, column)."""

    def run(q: torch.Tensor) -> torch.Tensor:
        o = right()
        o[index] = change(o[index])
        return o

    return run


def checked_by(checker: Checker, candidate: Candidate) -> Checked:
    return check("one", partial(checker.prepare, candidate), checker.compare, "cpu")


def test_checker_tells_right_wrong_and_broken() -> None:
    checker = Checker(SMALL, "cpu")
    assert checked_by(checker, PEERS["fa2"]).status == OK
    assert checked_by(checker, parse_kernel_name_into_config(PLAIN)).status == OK
    cases = {
        "wrong": (fake_peer("zeros", torch.zeros_like), "error .*allowed .*; at "),
        "failed": (fake_peer("broken", broken), "RuntimeError: no kernel image"),
    }
    for status, (peer, reason) in cases.items():
        checked = checked_by(checker, peer)
        assert (checked.status, checked.run) == (status, None)
        with pytest.raises(ValueError, match=reason):
            raise ValueError(checked.reason)


HEADS = [*product(range(SMALL.problem.batch), range(SMALL.problem.heads))]


@pytest.mark.parametrize(("batch", "head"), HEADS)
def test_checker_sees_one_wrong_value_in_any_head(batch: int, head: int) -> None:
    """A finite error of three times the tolerance in one element is noticed."""
    index = (batch, SMALL.problem.seq_len_q - 1, head, 5)
    checker = Checker(SMALL, "cpu")
    comparison = checked_by(checker, PEERS["fa2"]).comparison
    assert comparison is not None
    step = 3 * comparison.tolerance
    checked = checked_by(checker, fake_peer("off", wrong_at(index, lambda value: value + step)))
    assert checked.status == "wrong"
    assert str(index) in checked.reason


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_checker_sees_what_is_not_finite(value: float) -> None:
    index = (0, 3, 1, 5)  # a head between the first and the last
    spoilt = fake_peer("spoilt", wrong_at(index, lambda o: torch.full_like(o, value)))
    checked = checked_by(Checker(SMALL, "cpu"), spoilt)
    assert (checked.status, str(index) in checked.reason) == ("wrong", True)


def test_a_kernel_that_writes_nothing_is_wrong_after_a_right_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The output of the kernel before it, in the shared tensor, does not count as its result."""
    checker = Checker(SMALL, "cpu")
    config = parse_kernel_name_into_config(PLAIN)
    assert checked_by(checker, config).status == OK
    monkeypatch.setattr(Kernel, "__call__", lambda self, *a, **b: 0.0)
    checked = checked_by(checker, config)
    assert (checked.status, checked.run) == ("wrong", None)
    assert "got nan" in checked.reason


def test_a_comparison_allows_no_three_tolerances() -> None:
    """The tolerance is recomputed here: twice the error of a low-precision computation and of
    rounding."""
    q, k, v = make_qkv(SMALL.problem, "cpu")
    exact = reference.reference_attention(q, k, v)
    low = reference.reference_attention(q, k, v, compute=q.dtype)
    errors = ((each.double() - exact).abs().max().item() for each in (low, exact.half()))
    tolerance = 2 * sum(errors)
    for share, ok in ((0.5, True), (3.0, False)):
        o = right()
        o[1, 2, 0, 3] = exact[1, 2, 0, 3] + share * tolerance
        found = reference.compare(o, exact, low)
        assert found.ok == ok
        assert found.error == pytest.approx(share * tolerance, rel=0.1)
        assert found.worst.startswith("at (1, 2, 0, 3): got ")


# ---- times of one shape ----


def test_times_become_rates_shares_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    played = (fake_peer("other", lambda q: right()), fake_peer("broken", broken))
    play_peers(monkeypatch, *played, PEERS["fa2"])
    times = times_of({"fa2": 4.0, "other": 2.0, PLAIN: 1.0})
    monkeypatch.setattr(runner, "time_back_to_back", times)
    here = Runner("cpu", sample=lambda start: Sample(1700.0, 650.0))
    case = Case(FORWARD_KERNELS, SMALL, ("fa2", "other", "broken", PLAIN))
    rows = measure_times(here, case, BACK_TO_BACK, CEILINGS)
    fa2, second, failed, ours = rows
    assert [row.kind for row in rows] == [PEER, PEER, PEER, KERNEL]
    assert {row.regime for row in rows} == {BACK_TO_BACK}
    assert (ours.ms, ours.ms_p20, ours.ms_p80) == (1.0, 0.5, 2.0)
    assert ours.tflops == SMALL.flop / 1e-3 / 1e12
    assert ours.share_of_ceiling == ours.tflops / 700
    assert [row.ratio_to_best_peer for row in (fa2, second, ours)] == [0.5, 1.0, 2.0]
    assert (ours.sm_clock_mhz, ours.power_w) == (1700.0, 650.0)
    assert ours.error is not None
    assert ours.tolerance is not None
    assert ours.error <= ours.tolerance
    assert (failed.status, failed.ms) == (FAILED, None)


def test_without_nvml_the_monitor_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_module, "_NVML", "no-such-library.so")
    monkeypatch.setattr(monitor_module, "gpu_id", lambda: "GPU-0")
    with GpuMonitor() as monitor:
        assert monitor.since(0.0) == Sample(None, None)


def test_monitor_gives_medians_of_a_time_span() -> None:
    values = iter([Sample(1000.0, 100.0)] + [Sample(1500.0, None)] * 10_000)
    with GpuMonitor(lambda: next(values)) as monitor:
        deadline = time.monotonic() + 10
        while monitor.since(0.0).sm_clock_mhz != 1500.0 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert monitor.since(0.0) == Sample(1500.0, 100.0)
        assert monitor.since(time.monotonic() + 60) == Sample(1500.0, None)  # the last


def test_what_is_sustained_is_the_mean_of_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], []

    def run() -> None:
        calls.append(clock[0])
        clock[0] += 0.01

    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    monkeypatch.setattr(monitor_module, "gpu_id", lambda: "GPU-0")
    monkeypatch.setattr(monitor_module, "_open_nvml", lambda gpu: lambda: Sample(1500.0, 600.0))
    monkeypatch.setattr(monitor_module.GpuMonitor, "since", lambda self, start: Sample(start))
    monkeypatch.setattr(monitor_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    found = monitor_module.sustain(run, seconds=0.5)
    assert len(calls) == 60 and found.ms == pytest.approx(10.0)
    assert found.sample == Sample(0.25)  # samples of the second half of the run
