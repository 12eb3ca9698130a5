"""Kernels on the GPU: built together, checked, timed in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from flashsmith.configs import ForwardKernelConfig, KernelId, Workload
from flashsmith.errors import BuildError, TuningError
from flashsmith.jit import Progress, Target
from flashsmith.lab.bench.candidates import Checker
from flashsmith.lab.bench.timer import Timing, time_back_to_back, time_interleaved
from flashsmith.lab.soak import RERUNS, SoakPlan, soak
from flashsmith.lab.soak.session import RERUNS_ON_EMULATOR
from flashsmith.lab.tuning.search import Plan
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of

Runs = Mapping[str, Callable[[], object]]
Timer = Callable[[Runs, int | None], Mapping[str, Timing]]  # as Lab.time, of functions


# Seconds. Without it dozens of good kernels in turn hold the card at its power limit, which levels
# them: what differs by 3% at full clocks differs by 0.2% then, and noise decides.
_PAUSE = 0.001


def time_on_gpu(runs: Runs, repeats: int | None) -> Mapping[str, Timing]:
    if repeats is None:
        return time_back_to_back(runs)
    return time_interleaved(runs, repeats=repeats, warmup=1, pause=_PAUSE)


class KernelLab:
    """The kernels of a plan on one device; a ``Lab``."""

    def __init__(self, device: str = "cuda", timer: Timer = time_on_gpu) -> None:
        self._device = device
        self._target = target_of(torch.device(device))
        self._timer = timer
        self._unbuilt: Mapping[KernelId, str] = {}
        self._checker: Checker | None = None  # of the latest workload: its tensors are large
        self._runs: dict[ForwardKernelConfig, Callable[[], object]] = {}

    def build(self, plan: Plan, progress: Progress) -> None:
        """Has the kernels of a plan in one loaded library, without those that cannot be built."""
        instances = {
            KernelId(cfg, workload.variant) for workload, configs in plan.items() for cfg in configs
        }
        self._unbuilt = load_buildable(sorted(instances), self._target, progress)

    def check(
        self, workload: Workload, configs: Sequence[ForwardKernelConfig]
    ) -> dict[ForwardKernelConfig, str]:
        wrong = {}
        if self._checker is None or self._checker.workload != workload:
            self._checker = None  # frees the tensors before the next are made
            self._runs = {}
            self._checker = Checker(workload, self._device)
        for cfg in configs:
            why_not = self._unbuilt.get(KernelId(cfg, workload.variant))
            if why_not is not None:
                wrong[cfg] = why_not
                continue
            checked = self._checker.check(cfg)
            if checked.run is None:
                wrong[cfg] = f"{checked.status}: {checked.reason}"
            else:
                self._runs[cfg] = checked.run
        return wrong

    def time(
        self, workload: Workload, configs: Sequence[ForwardKernelConfig], repeats: int | None
    ) -> dict[ForwardKernelConfig, Timing]:
        self._prepare(workload, configs)
        times = self._timer({str(cfg): self._runs[cfg] for cfg in configs}, repeats)
        return {cfg: times[str(cfg)] for cfg in configs}

    def soak(
        self, workload: Workload, configs: Sequence[ForwardKernelConfig]
    ) -> dict[ForwardKernelConfig, str]:
        """On the cases at the seams of each kernel's tiles, none of them random, with reruns."""
        kernels = {KernelId(cfg, workload.variant): cfg for cfg in configs}
        wrong = soak_at_seams(list(kernels), self._device)
        return {kernels[kernel]: why for kernel, why in wrong.items()}

    def _prepare(self, workload: Workload, configs: Sequence[ForwardKernelConfig]) -> None:
        """After an interruption they were checked by an earlier process: once more is cheap."""
        known = self._runs if self._checker and self._checker.workload == workload else {}
        if wrong := self.check(workload, [cfg for cfg in configs if cfg not in known]):
            name, why = next(iter(wrong.items()))
            raise TuningError(f"{name} was right before and is not now: {why}")


def soak_at_seams(kernels: Sequence[KernelId], device: str) -> dict[KernelId, str]:
    """Runs kernels where their tiles meet, on none of the random cases, with reruns. Those that
    were wrong anywhere, and where."""
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
    """Loads kernels, or builds them; those that cannot be built, and why.

    Where one cannot be built, halves: so the others are still in few libraries.
    """
    try:
        load_kernels(instances, target, progress)
    except BuildError as error:
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
