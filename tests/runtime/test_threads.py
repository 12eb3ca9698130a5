"""Calls of several threads at once have the bits of the same calls made alone."""

from __future__ import annotations

import pytest
import torch

from flashsmith.configs import KernelId
from flashsmith.errors import EmulatorFault
from flashsmith.jit import Target
from flashsmith.ops import bound_decode
from flashsmith.runtime import find_kernels
from flashsmith.runtime.plan import Plan
from flashsmith.runtime.workspace import Scratch
from flashsmith.selection.choose import forget_calls
from support.sm90_kernels import SOME
from support.stress import MODES, stress
from support.stress_works import Maker

CPU = torch.device("cpu")


def test_zeros_that_threads_share_are_of_plans_of_one_launch() -> None:
    """``attention`` keeps a queue with the call, for whichever thread repeats it on that stream, so
    that no launch may come between two launches that need it."""
    queued = [cfg for cfg in SOME if cfg.dynamic_queue]
    assert queued
    for kernel in find_kernels([KernelId(cfg) for cfg in queued], Target.emulator()):
        q = torch.zeros(1, 300, 2, kernel.instance.config.d_head).to(
            kernel.instance.config.dtype.to_torch_dtype()
        )
        plan = kernel.plan(q, q, q, q.clone())
        assert plan.zeroed_bytes == plan.workspace_bytes > 0
        assert len(plan.launches) == 1


def test_threads_that_call_everything_at_once_do_not_meet() -> None:
    rows = stress(CPU, 64, 4, MODES[:1])
    assert sum(row.calls for row in rows) == 64
    assert max(row.launches for row in rows) == 2
    assert [row.operation for row in rows if row.wrong] == []


class SharedScratch(Scratch):
    """Scratch memory that all threads share."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        super().__init__(plan, device)
        self._memory = (
            torch.zeros(plan.workspace_bytes, dtype=torch.uint8),
            torch.zeros(plan.counter_bytes, dtype=torch.uint8) if plan.counter_bytes else None,
        )

    def __call__(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._memory


def test_sums_that_threads_share_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan has two launches; otherwise the test above could not fail."""
    make = Maker(CPU)
    works = [make.decode("", 1, 66, (4, 1), 128, splits=64, queries=4) for _ in range(2)]
    monkeypatch.setattr("support.stress.works_on", lambda _: works)
    assert sum(row.wrong for row in stress(CPU, 32, 4, MODES[:1])) == 0
    monkeypatch.setattr(bound_decode, "Scratch", SharedScratch)
    forget_calls()
    try:
        wrong = sum(row.wrong for row in stress(CPU, 96, 4, MODES[:1]))
    except EmulatorFault:
        return
    finally:
        forget_calls()
    assert wrong > 0
