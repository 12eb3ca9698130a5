"""Builds kernels together, checks them, and times them in turn on the GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

import torch

from flashsmith.configs import KernelId
from flashsmith.configs.family import C, W
from flashsmith.errors import BuildError, TuningError
from flashsmith.jit import Progress, Target
from flashsmith.lab.bench.timer import Timing, time_back_to_back, time_interleaved
from flashsmith.lab.soak import RERUNS, SoakPlan, soak
from flashsmith.lab.soak.session import RERUNS_ON_EMULATOR
from flashsmith.lab.tuning.benches import Bench, Run
from flashsmith.lab.tuning.search import Plan
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of

Runs = Mapping[str, Run]
Timer = Callable[[Runs, int | None], Mapping[str, Timing]]  # like Lab.time, but of functions
MakeBenches = Callable[[W, str], Sequence[Callable[[], Bench[C]]]]  # workload, device -> makers


# Seconds between launches. Without this pause, dozens of good kernels in turn hold the GPU at its
# power limit, which levels them: 3% at full clocks shrink to 0.2%, and noise decides.
_PAUSE = 0.001


def time_on_gpu(runs: Runs, repeats: int | None) -> Mapping[str, Timing]:
    if repeats is None:
        return time_back_to_back(runs)
    return time_interleaved(runs, repeats=repeats, warmup=1, pause=_PAUSE)


class KernelLab(Generic[W, C]):
    """A ``Lab`` that builds, checks and times the kernels of a plan on one device.

    make_benches: Makes the benches that a workload is checked and timed on: one shape, or several
        that stand for all.
    """

    def __init__(
        self, make_benches: MakeBenches[W, C], device: str = "cuda", timer: Timer = time_on_gpu
    ) -> None:
        self._make_benches, self._device = make_benches, device
        self._target = target_of(torch.device(device))
        self._timer = timer
        self._unbuilt: Mapping[KernelId, str] = {}
        self._workload: W | None = None  # only the latest keeps its tensors, which are large
        self._benches: Sequence[Bench[C]] = ()
        self._runs: dict[C, list[Run]] = {}  # one for each bench

    def build(self, plan: Plan[W, C], progress: Progress) -> None:
        """Loads the kernels of a plan, without the ones that cannot be built."""
        instances = {
            KernelId(cfg, workload.variant) for workload, configs in plan.items() for cfg in configs
        }
        self._unbuilt = load_buildable(sorted(instances), self._target, progress)

    def check(self, workload: W, configs: Sequence[C]) -> dict[C, str]:
        wrong = {}
        self._enter(workload)
        for cfg in configs:
            why_not = self._unbuilt.get(KernelId(cfg, workload.variant))
            runs: list[Run] = []
            for bench in self._benches:
                if why_not is None:
                    checked = bench.check(cfg)
                    if isinstance(checked, str):
                        why_not = checked
                    else:
                        runs.append(checked)
            if why_not is None:
                self._runs[cfg] = runs
            else:
                wrong[cfg] = why_not
        return wrong

    def time(self, workload: W, configs: Sequence[C], repeats: int | None) -> dict[C, Timing]:
        """Times configurations in turn; over several shapes, returns the geometric means."""
        self._prepare(workload, configs)
        by_bench = [
            self._timer({str(cfg): self._runs[cfg][place] for cfg in configs}, repeats)
            for place in range(len(self._benches))
        ]
        return {cfg: _mean([times[str(cfg)] for times in by_bench]) for cfg in configs}

    def soak(self, workload: W, configs: Sequence[C]) -> dict[C, str]:
        """Soaks kernels at tile boundaries, with reruns and without random cases."""
        kernels = {
            KernelId(cfg, variant): cfg for cfg in configs for variant in workload.soaked_variants
        }
        unbuilt = load_buildable(list(kernels), self._target, None)
        built = [kernel for kernel in kernels if kernel not in unbuilt]
        wrong = unbuilt | soak_at_tile_boundaries(built, self._device)
        return {kernels[kernel]: why for kernel, why in wrong.items()}

    def _enter(self, workload: W) -> None:
        if workload != self._workload:
            self._workload, self._runs, self._benches = None, {}, ()  # free the old tensors first
            self._benches = [make() for make in self._make_benches(workload, self._device)]
            self._workload = workload

    def _prepare(self, workload: W, configs: Sequence[C]) -> None:
        """Checks kernels that only an earlier, interrupted process has checked; this is cheap."""
        known = self._runs if workload == self._workload else {}
        if wrong := self.check(workload, [cfg for cfg in configs if cfg not in known]):
            name, why = next(iter(wrong.items()))
            raise TuningError(f"{name} was right before and is not now: {why}")


def _mean(timings: Sequence[Timing]) -> Timing:
    if len(timings) == 1:
        return timings[0]
    columns: Any = zip(*((each.ms, each.low, each.high) for each in timings), strict=True)
    return Timing(*(math.exp(sum(map(math.log, column)) / len(column)) for column in columns))


def soak_at_tile_boundaries(kernels: Sequence[KernelId], device: str) -> dict[KernelId, str]:
    """Soaks kernels at tile boundaries, with reruns and without random cases. Returns the kernels
    that failed, with the first failure of each."""
    reruns = RERUNS if device.startswith("cuda") else RERUNS_ON_EMULATOR
    tallies = soak(kernels, SoakPlan(random_cases=0, reruns=reruns), device)
    return {
        kernel: f"{tally.failures[0].case}: {tally.failures[0].failure}"
        for kernel, tally in tallies.items()
        if tally.failures
    }


def load_buildable(
    instances: Sequence[KernelId], target: Target, progress: Progress | None
) -> dict[KernelId, str]:
    """Loads kernels, building them if needed; returns the ones that cannot be built, and why.

    If a build fails, its list is halved, so that the other kernels still share few libraries.
    """
    try:
        load_kernels(instances, target, progress)
    except (BuildError, ValueError) as error:
        if len(instances) == 1:
            return {instances[0]: str(error)}
        middle = len(instances) // 2
        halves = instances[:middle], instances[middle:]
        return {
            kernel: why
            for half in halves
            for kernel, why in load_buildable(half, target, progress).items()
        }
    return {}
