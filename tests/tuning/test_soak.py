"""A kernel enters a table only if it passed the soak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flashsmith.configs import CAUSAL, FULL, DType, FlashForwardKernelConfig
from flashsmith.errors import GpuLostError, TuningError
from flashsmith.lab.tuning.lab import KernelLab
from flashsmith.runtime import Kernel
from flashsmith.selection.entries import Entry
from flashsmith.selection.tables import Table
from support.tuning import (
    BEST,
    HEURISTIC,
    SPACE,
    WORKLOAD,
    WORKLOADS,
    FakeLab,
    kernels_of,
    tune,
)
from support.workloads import changed, square


def entry_of(table: Table) -> Entry:
    (entry,) = table.entries.values()
    return entry


def test_the_fastest_kernel_does_not_enter_when_it_fails_the_soak(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    entry = entry_of(tune(out, FakeLab(unsound={BEST: "rows of NaN"})))
    assert BEST not in [row.config for row in entry.ranked]
    assert entry.excluded == {BEST.short_form(): "soak: rows of NaN"}
    assert entry == entry_of(Table.read(out))
    (heuristic,) = (row for row in entry.ranked if row.config == HEURISTIC)
    assert entry.heuristic_ratio == pytest.approx(heuristic.cost / entry.ranked[0].cost, rel=1e-3)


def test_the_heuristic_may_fail_too(tmp_path: Path) -> None:
    entry = entry_of(tune(tmp_path / "t.json", FakeLab(unsound={HEURISTIC: "bad"})))
    assert entry.heuristic_ratio is None
    assert HEURISTIC not in [row.config for row in entry.ranked]


def test_nothing_is_written_when_every_kernel_fails_the_soak(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    with pytest.raises(TuningError, match=r"no kernel can be tuned for FP16 d 128 full.*soak: bad"):
        tune(out, FakeLab(unsound=dict.fromkeys(SPACE, "bad")))
    assert not out.exists()


def test_what_is_ranked_and_only_that_is_soaked_once_for_all_lengths(tmp_path: Path) -> None:
    fake = FakeLab()
    table = tune(tmp_path / "t.json", fake, WORKLOADS)
    soaked = [number for _, what, number in fake.asked if what == "soak"]
    ranked = {cfg for workload in WORKLOADS for cfg in kernels_of(table, workload)}
    assert sum(soaked) == len(ranked) < len(SPACE) / 2


def test_full_and_causal_kernels_are_soaked_each(tmp_path: Path) -> None:
    fake = FakeLab()
    tune(tmp_path / "t.json", fake, [WORKLOAD, changed(WORKLOAD, mask="causal")])
    asked = [(each.variant, number) for each, what, number in fake.asked if what == "soak"]
    assert [variant for variant, _ in asked] == [FULL, CAUSAL]
    assert asked[0][1] == asked[1][1]


def test_kernel_that_takes_the_gpu_with_it_is_not_soaked_again(tmp_path: Path) -> None:
    class Lost(FakeLab):
        def soak(
            self, workload: Any, configs: Sequence[FlashForwardKernelConfig]
        ) -> dict[FlashForwardKernelConfig, str]:
            if BEST in configs:
                raise GpuLostError(f"{BEST} causal", "illegal address")
            return super().soak(workload, configs)

    out = tmp_path / "t.json"
    causal = changed(WORKLOAD, mask="causal")
    with pytest.raises(GpuLostError):
        tune(out, Lost(), [causal])
    entry = entry_of(tune(out, Lost(), [causal]))
    assert "illegal address" in entry.excluded[BEST.short_form()]
    assert BEST not in [row.config for row in entry.ranked]


def test_lab_finds_what_a_check_of_one_shape_does_not(
    emulated_lab: KernelLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is wrong at a length for which no one tunes. Heads have 64 elements, which the
    emulator multiplies in half the time."""
    call = Kernel.__call__
    small = square(DType.FP16, 64, "full", 1, 1, 128)
    good, bad = (replace(config, d_head=64) for config in (HEURISTIC, BEST))

    def wrong_in_long_rows(
        self: Kernel, q: Any, k: Any, v: Any, o: torch.Tensor, *a: Any, **b: Any
    ) -> float:
        elapsed = call(self, q, k, v, o, *a, **b)
        if self.instance.config == bad and o.shape[1] > small.problem.seq_len_q:
            o[0, -1, 0, 5] += 0.1
        return elapsed

    monkeypatch.setattr(Kernel, "__call__", wrong_in_long_rows)
    assert emulated_lab.check(small, [good, bad]) == {}
    found = emulated_lab.soak(small, [good, bad])
    assert list(found) == [bad]
    assert "seq_len_q=192" in found[bad] and "0, 5)" in found[bad]
