"""The soak notices each fault that a kernel can have, shown by kernels with just that fault."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashsmith.configs import VARIANTS, DType, KernelId, parse_kernel_name_into_config
from flashsmith.errors import EmulatorFault
from flashsmith.jit import Target
from flashsmith.lab.soak import SoakCase, Values, Verdict, check, prepare, takes
from flashsmith.problem import Problem
from flashsmith.runtime import Kernel, load_kernels
from flashsmith.runtime.plan import Plan
from support.sm80_kernels import BASE

SM90 = parse_kernel_name_into_config("(FP16, 64, 64, 64, 1): wgmma+stages_1")
CASE = SoakCase(Problem(DType.FP16, 64, 2, 4, 2, 20, 30))
CONFIGS = [SM90, BASE]
Act = Callable[..., None]


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    load_kernels([KernelId(c, v) for c in CONFIGS for v in VARIANTS], Target.emulator())


def verdict_on(
    case: SoakCase = CASE, config: Any = SM90, reruns: int = 2, load: Any = None
) -> Verdict:
    return check(case.kernel(config), prepare(case, "cpu"), reruns=reruns, load=load)


@pytest.fixture
def afterwards(monkeypatch: pytest.MonkeyPatch) -> Callable[[Act], None]:
    """Returns a function that installs an action after each launch; the action gets the number of
    the launch, q, k, v, o, lse."""

    def install(act: Act) -> None:
        call, launches = Kernel.__call__, []

        def launch(self: Kernel, q: Any, k: Any, v: Any, o: Any, scale: float, **rest: Any) -> Any:
            result = call(self, q, k, v, o, scale, **rest)
            launches.append(0)
            act(len(launches), q, k, v, o, rest["lse"])
            return result

        monkeypatch.setattr(Kernel, "__call__", launch)

    return install


@pytest.mark.parametrize(
    ("layout", "values"),
    [
        ("contiguous", "normal"),
        ("padded", "nan_q"),
        ("heads_first", "inf_k"),
        ("packed", "huge"),
        ("padded", "spike:64"),
        ("heads_first", "fall:64:8.08"),
    ],
)
def test_a_right_kernel_passes(layout: str, values: str) -> None:
    case = SoakCase.parse(f"{CASE} layout={layout} values={values} causal=True")
    verdict = verdict_on(case)
    assert verdict.ok, verdict.sentence
    assert (verdict.reruns, verdict.refused) == (2, False)
    assert set(verdict.ratios) == {"o", "lse"}
    assert all(0 < ratio < 1 for ratio in verdict.ratios.values())
    assert "2 reruns bitwise equal" in verdict.sentence


def wrong_in_the_last_head(_: int, q: Any, k: Any, v: Any, o: Any, lse: Any) -> None:
    o[-1, -1, -1, -1] += 0.02


def not_written(_: int, q: Any, k: Any, v: Any, o: Any, lse: Any) -> None:
    o[1, 3, 2, 5] = math.nan


def wrong_lse(_: int, q: Any, k: Any, v: Any, o: Any, lse: Any) -> None:
    lse[1, 2, 3] += 1e-3


def other_bits_in_the_last_run(n: int, q: Any, k: Any, v: Any, o: Any, lse: Any) -> None:
    if n == 3:
        o[0, 0, 0, 0] *= 1.001


def other_lse_in_the_last_run(n: int, q: Any, k: Any, v: Any, o: Any, lse: Any) -> None:
    if n == 3:
        lse[0, 0, 0] += 1e-6


def wrote_before_o(_: int, q: Any, k: Any, v: Any, o: Any, lse: Any) -> None:
    o.untyped_storage()[0] = 1


def wrote_behind_lse(_: int, q: Any, k: Any, v: Any, o: Any, lse: Any) -> None:
    storage = lse.untyped_storage()
    storage[len(storage) - 1] = 1


def wrote_k(_: int, q: Any, k: Any, v: Any, o: Any, lse: Any) -> None:
    k[0, -1, 0, 0] += 1


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (wrong_in_the_last_head, r"o at \(1, 19, 3, 63\)"),
        (not_written, r"o at \(1, 3, 2, 5\): got nan"),
        (wrong_lse, r"lse at \(1, 2, 3\)"),
        (other_bits_in_the_last_run, "1 of 2 reruns gave other bits"),
        (other_lse_in_the_last_run, "1 of 2 reruns gave other bits"),
        (wrote_before_o, "memory around o or lse was written"),
        (wrote_behind_lse, "memory around o or lse was written"),
        (wrote_k, "q, k or v was written"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("layout", ["contiguous", "heads_first"])
def test_what_is_wrong_is_seen(
    act: Act, said: str, layout: str, afterwards: Callable[[Act], None]
) -> None:
    afterwards(act)
    verdict = verdict_on(SoakCase.parse(f"{CASE} layout={layout}"))
    assert not verdict.ok
    assert re.search(said, verdict.failure), verdict.failure
    assert verdict.sentence.startswith(f"{SM90} is wrong on dtype=FP16")


def test_rows_that_are_right_as_nan_have_to_be_written_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel leaves these rows as they were, which is NaN in the first run."""
    call = Kernel.__call__

    def leave(self: Kernel, q: Any, k: Any, v: Any, o: Any, scale: float, **rest: Any) -> float:
        before = o[:, 10].clone()
        elapsed = call(self, q, k, v, o, scale, **rest)
        o[:, 10, ::2] = before[:, ::2]
        return elapsed

    monkeypatch.setattr(Kernel, "__call__", leave)
    case = SoakCase.parse(f"{CASE} values=nan_q")
    assert "2 of 2 reruns gave other bits" in verdict_on(case).failure


def test_reruns_beside_another_stream_are_told_apart(afterwards: Callable[[Act], None]) -> None:
    class Load:
        added, waited = 0, []

        def add(self) -> None:
            self.added += 1

        def wait(self) -> None:
            self.waited.append(self.added)

    load = Load()
    assert verdict_on(load=load).reruns == 4
    assert (load.added, load.waited) == (2, [2])

    def in_the_fifth(n: int, q: Any, k: Any, v: Any, o: Any, lse: Any) -> None:
        if n == 5:
            o[0, 0, 0, 0] += 1

    afterwards(in_the_fifth)
    assert "1 of 2 reruns beside another stream" in verdict_on(load=Load()).failure


def test_a_fault_of_the_emulator_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any, **__: Any) -> None:
        raise EmulatorFault("a race")

    monkeypatch.setattr(Kernel, "__call__", fault)
    assert verdict_on().failure == "EmulatorFault: a race"


REFUSED = [
    (config, SoakCase(Problem(config.dtype, config.d_head, 1, 2, 2, 5, 0)))
    for config in (SM90, BASE)
]


@pytest.mark.parametrize(("config", "case"), REFUSED, ids=lambda value: str(value))
def test_what_the_library_does_not_take_has_to_be_refused(
    config: Any, case: SoakCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not takes(config, case)
    verdict = verdict_on(case, config)
    assert verdict.ok and verdict.refused
    assert "refuses" in verdict.sentence
    monkeypatch.setattr(Kernel, "plan", lambda *_, **__: Plan((), 0, 0))
    monkeypatch.setattr(Kernel, "__call__", lambda *_, **__: 0.0)
    assert "should be refused with a ValueError" in verdict_on(case, config).failure

    def late(self: Any, q: Any, k: Any, v: Any, o: torch.Tensor, *_: Any, **__: Any) -> float:
        o.zero_()
        raise ValueError("too late")

    monkeypatch.setattr(Kernel, "__call__", late)
    assert "was written before" in verdict_on(case, config).failure


@pytest.mark.parametrize("lengths", [(0, 5), (0, 0)])
def test_nothing_to_do_is_done(lengths: tuple[int, int]) -> None:
    case = SoakCase(Problem(DType.FP16, 64, 1, 2, 2, *lengths), values=Values("spike"))
    assert takes(SM90, case)
    verdict = verdict_on(case)
    assert verdict.ok and not verdict.refused, verdict.sentence


def test_reference_in_parts_is_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several samples and shared heads are computed in parts, as limited memory may force."""
    whole = prepare(CASE, "cpu").truth
    monkeypatch.setattr("flashsmith.lab.soak.prepared._MAX_SCORES_AT_ONCE", 1)
    parts = prepare(CASE, "cpu").truth
    assert whole is not None and parts is not None
    for name in ("o", "lse", "low_precision", "lse_tolerance"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))
    # The allowance depends on the largest value of v, which may differ between parts.
    assert parts.allowance.shape == whole.allowance.shape == (2, 20, 4, 1)
