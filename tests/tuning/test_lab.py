"""The tuner's own lab, on the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flashsmith.configs import (
    FlashForwardKernelConfig,
    get_kernel_progression_configs,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.errors import BuildError
from flashsmith.jit import Target
from flashsmith.lab.tuning import lab
from flashsmith.lab.tuning.benches import benches_of
from flashsmith.lab.tuning.lab import KernelLab
from flashsmith.lab.tuning.session import tuning_session
from flashsmith.runtime import Kernel
from support.tuning import (
    PROGRESSION,
    SMALL,
    STAMP,
    fake_timer,
    kernels_of,
)


def test_lab_builds_checks_and_times_on_the_emulator(
    emulated_lab: KernelLab, tmp_path: Path
) -> None:
    plan = {SMALL: PROGRESSION}
    emulated_lab.build(plan, lambda *_: None)
    with tuning_session(FORWARD, tmp_path / "t.json", STAMP) as session:
        table = session.run(plan, emulated_lab, lambda *_: None)
    (entry,) = table.entries.values()
    assert (entry.tried, entry.excluded) == (2, {})
    assert kernels_of(table, SMALL) == PROGRESSION  # the last stands for the heuristic's choice


def test_lab_finds_a_wrong_kernel(emulated_lab: KernelLab, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Kernel.__call__
    bad = PROGRESSION[0]

    def off_by_a_bit(
        self: Kernel, q: Any, k: Any, v: Any, o: torch.Tensor, *a: Any, **b: Any
    ) -> float:
        elapsed = call(self, q, k, v, o, *a, **b)
        if self.instance.config == bad:
            o[0, 7, 0, 5] += 0.1
        return elapsed

    monkeypatch.setattr(Kernel, "__call__", off_by_a_bit)
    wrong = emulated_lab.check(SMALL, PROGRESSION)
    assert list(wrong) == [bad]
    assert "(0, 7, 0, 5)" in wrong[bad]


def test_lab_builds_the_others_when_some_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = get_kernel_progression_configs()
    bad = {configs[1], configs[5]}
    built: list[FlashForwardKernelConfig] = []

    def load(instances: Any, target: Target, progress: Any) -> None:
        if any(instance.config in bad for instance in instances):
            raise BuildError("spills")
        built.extend(instance.config for instance in instances)

    monkeypatch.setattr(lab, "load_kernels", load)
    here = KernelLab(benches_of(FORWARD), "cpu", fake_timer)
    here.build({SMALL: configs}, lambda *_: None)
    assert set(built) == set(configs) - bad
    assert here.check(SMALL, sorted(bad)) == dict.fromkeys(sorted(bad), "spills")
