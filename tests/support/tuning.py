"""A fake lab with known speeds, and workloads to tune in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flashsmith.configs import (
    DType,
    FlashForwardKernelConfig,
    Workload,
    get_autotuning_kernel_configs,
    get_kernel_progression_configs,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.jit import kernel_source_stamp
from flashsmith.lab.bench.timer import Timing
from flashsmith.lab.tuning.search import make_plan
from flashsmith.lab.tuning.session import tuning_session
from flashsmith.selection.tables import Table
from support.workloads import changed, square

A100 = "NVIDIA A100-SXM4-80GB"
STAMP = {"gpu": A100, "driver_version": "580.159.04", **kernel_source_stamp()}
SPACE = get_autotuning_kernel_configs([DType.FP16])
WORKLOAD = square(DType.FP16, 128, "full", 4, 16, 4096)
WORKLOADS = [changed(WORKLOAD, seq_len=seq_len) for seq_len in (1024, 4096)]
HEURISTIC = SM80_FORWARD.heuristic(Workload.square(DType.FP16, 128, 4096))
BEST = SPACE[17]
SMALL = square(DType.FP16, 128, "full", 1, 1, 128)
PROGRESSION = get_kernel_progression_configs()[-2:]


def milliseconds(workload: Workload, cfg: FlashForwardKernelConfig) -> float:
    """Returns the true time in the fake lab: BEST wins, the others follow in an arbitrary order."""
    return 1.0 if cfg == BEST else 1.05 + SPACE.index(cfg) * 7 % len(SPACE) / 40


class FakeLab:
    """Returns true times with noise that repeats average away; records the requests."""

    def __init__(
        self,
        wrong: Mapping[FlashForwardKernelConfig, str] | None = None,
        die_at: int = -1,
        unsound: Mapping[FlashForwardKernelConfig, str] | None = None,
    ) -> None:
        self.wrong, self.die_at, self.unsound = wrong or {}, die_at, unsound or {}
        self.launches: dict[FlashForwardKernelConfig, int] = {}
        self.asked: list[tuple[Workload, str, int]] = []

    def _ask(self, workload: Workload, what: str, number: int) -> None:
        if len(self.asked) == self.die_at:
            raise KeyboardInterrupt
        self.asked.append((workload, what, number))

    def build(self, plan: Any, progress: Any) -> None:
        pass

    def check(
        self, workload: Workload, configs: Sequence[FlashForwardKernelConfig]
    ) -> dict[FlashForwardKernelConfig, str]:
        self._ask(workload, "check", len(configs))
        return {cfg: why for cfg, why in self.wrong.items() if cfg in configs}

    def time(
        self, workload: Workload, configs: Sequence[FlashForwardKernelConfig], repeats: int | None
    ) -> dict[FlashForwardKernelConfig, Timing]:
        if repeats is None:
            self._ask(workload, "time back to back", len(configs))
            steady = {cfg: 1.1 * milliseconds(workload, cfg) for cfg in configs}
            return {cfg: Timing(ms, ms, ms) for cfg, ms in steady.items()}
        self._ask(workload, "time", len(configs))
        times = {}
        for i, cfg in enumerate(configs):
            self.launches[cfg] = self.launches.get(cfg, 0) + repeats
            ms = milliseconds(workload, cfg) + (0.3 if i % 2 else -0.3) / repeats**0.5
            times[cfg] = Timing(ms, ms - 0.01, ms + 0.01)
        return times

    def soak(
        self, workload: Workload, configs: Sequence[FlashForwardKernelConfig]
    ) -> dict[FlashForwardKernelConfig, str]:
        self._ask(workload, "soak", len(configs))
        return {cfg: why for cfg, why in self.unsound.items() if cfg in configs}


def tune(
    out: Path, fake: Any, workloads: Sequence[Workload] = (WORKLOAD,), **options: Any
) -> Table:
    plan = make_plan(FORWARD, workloads, "sm_80", configs=SPACE)
    with tuning_session(
        FORWARD, out, options.pop("stamp", STAMP), options.pop("fresh", False)
    ) as session:
        return session.run(plan, fake, lambda *_: None, **options)


def kernels_of(table: Table, workload: Workload = WORKLOAD) -> list[FlashForwardKernelConfig]:
    (entry,) = (e for e in table.entries.values() if e.workload == workload)
    return [row.config for row in entry.ranked]


def fake_timer(runs: Mapping[str, Callable[[], object]], repeats: int | None) -> dict[str, Timing]:
    for run in runs.values():
        run()
    return {name: Timing(1.0 + i, 1.0, 1.0) for i, name in enumerate(runs)}
