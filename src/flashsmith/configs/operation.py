"""An operation and its families: which run on a GPU, and which serve a workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Generic

from flashsmith.configs.base import Capability
from flashsmith.configs.family import C, Family, W
from flashsmith.configs.kernel_id import sort_key
from flashsmith.dtype import DType
from flashsmith.errors import DeviceError
from flashsmith.gpus import (
    GpuArchitecture,
    count_sms,
    find_architecture,
    get_gpu_architecture,
)

_MAX_COST_RATIO = 0.85  # measurements always agreed with a cost model's ratio below this

_NOT_ASKED = "is not for such calls"


@dataclass(frozen=True)
class Serving(Generic[W, C]):
    """The families that serve a workload on one GPU, and the reasons why others do not.

    Attributes:
        by_heuristic: The heuristic choice of each serving family, best family first; at least one.
        refusals: The reasons of the other families.
        architecture: The architecture that tiles must fit; None: the emulator, or a GPU newer than
            the list.
    """

    workload: W
    by_heuristic: Mapping[Family[W, C], C]
    refusals: Mapping[Family[W, C], str]
    architecture: str | None

    @property
    def heuristic_config(self) -> C:
        return next(iter(self.by_heuristic.values()))

    @property
    def heuristic_configs(self) -> list[C]:
        """Lists all configurations that the first family may choose by heuristic for this dtype and
        d_head."""
        first, workload = next(iter(self.by_heuristic)), self.workload
        configs = first.heuristic_configs(workload.dtype, workload.d_head)
        return [cfg for cfg in configs if cfg.is_buildable(self.architecture)]

    def why_not(self, config: C) -> str:
        """Returns why a configuration does not serve the workload; "" if it does."""
        if all(type(config) is not family.config for family in self.by_heuristic):
            refused = (why for each, why in self.refusals.items() if type(config) is each.config)
            return next(refused)
        if why := config.why_not(self.workload):
            return why
        return "" if config.is_buildable(self.architecture) else "it has no room there"

    def why_heuristic_is_better(self, config: C, num_sms: int) -> str:
        """Returns why the heuristic's choice is better than a configuration that was measured at
        another fill of the GPU; "" if the cost model, which compares tiles of one family only, sees
        no great difference."""
        family, chosen = next(iter(self.by_heuristic.items()))
        if type(config) is not type(chosen) or family.cost is None:
            return ""
        of_heuristic = family.cost(chosen, self.workload, num_sms)
        of_config = family.cost(config, self.workload, num_sms)
        if of_heuristic < _MAX_COST_RATIO * of_config:
            saved = 1 - of_heuristic / of_config
            return f"measured on a fuller GPU; the heuristic's tiles save {saved:.0%}"
        return ""


def _as_it_is(workload: W, _: Sequence[Family[W, C]]) -> W:
    return workload


@dataclass(frozen=True)
class Operation(Generic[W, C]):
    """An operation with its families, plainest first.

    Attributes:
        name: "forward", "backward" or "decode"; configurations have the same name.
        workload: The class of its workloads.
        as_tuned: (workload, families that run) -> the workload whose measurements serve it.
    """

    name: str
    workload: type[W]
    families: tuple[Family[W, C], ...]
    as_tuned: Callable[[W, Sequence[Family[W, C]]], W] = _as_it_is

    def families_on(
        self, capability: Capability | None, gpu: str = "the GPU"
    ) -> tuple[Family[W, C], ...]:
        """Lists the families that run on a GPU, newest first; None: all, for the emulator, plainest
        first.

        Raises DeviceError: The GPU, which the message calls ``gpu``, is too old for every family.
        """
        if capability is None:
            return self.families
        found = tuple(each for each in reversed(self.families) if each.runs_on(capability))
        if found:
            return found
        version = ".".join(map(str, capability))
        raise DeviceError(f"{gpu} has compute capability {version}; the kernels need 8.0 or newer")

    def families_for(
        self, gpu: str | None, capability: Capability | None = None
    ) -> tuple[Family[W, C], ...]:
        """Returns ``families_on`` for the GPU, or architecture, of this name; None: the emulator.

        capability: The GPU's compute capability; None: derived from its name.

        Raises:
            ValueError: No GPU of this name is known.
            DeviceError: The GPU is too old for every family.
        """
        if gpu is None:
            return self.families_on(None)
        return self.families_on(capability_of(gpu, capability), gpu)

    def serving(
        self, workload: W, gpu: str | None, capability: Capability | None = None
    ) -> Serving[W, C]:
        """Finds the families that serve a workload on the GPU, or architecture, of this name (None:
        the emulator), and why others do not.

        capability: The GPU's compute capability; None: derived from its name.

        Raises:
            DeviceError: The GPU is too old for every family.
            ValueError: No family supports the problem there (the message has the newest family's
                reason), or no GPU of this name is known.
        """
        running = self.families_for(gpu, capability)
        if gpu is None:
            return self._serving(workload, running, None, None)
        found = find_architecture(capability_of(gpu, capability))
        architecture = None if found is None else found.name
        served = self._serving(workload, running, count_sms(gpu), architecture)
        elsewhere = {
            family: f"the {family.name} family does not run on {gpu}"
            for family in self.families
            if family not in running
        }
        return Serving(workload, served.by_heuristic, elsewhere | {**served.refusals}, architecture)

    def choose_by_heuristic(self, workload: W, capability: Capability | None) -> C:
        """Chooses by heuristic for a workload on a GPU with this compute capability; None: the
        emulator.

        Raises: See ``serving``.
        """
        found = find_architecture(capability) if capability else None
        architecture = None if found is None else found.name
        running = self.families_on(capability)
        return self._serving(workload, running, None, architecture).heuristic_config

    def _serving(
        self,
        workload: W,
        running: Sequence[Family[W, C]],
        num_sms: int | None,
        architecture: str | None,
    ) -> Serving[W, C]:
        by_heuristic: dict[Family[W, C], C] = {}
        refusals: dict[Family[W, C], str] = {}
        for family in running:
            if not family.is_for(workload):
                refusals[family] = f"the {family.name} family {_NOT_ASKED}"
                continue
            try:
                chosen = family.choose(workload, num_sms, architecture)
                chosen = family.suited(chosen.adapted_to(workload.variant), workload)
            except ValueError as error:
                refusals[family] = str(error)
                continue
            if why := chosen.why_not(workload):
                refusals[family] = f"the {family.name} family {why.removeprefix('it ')}"
            elif not chosen.is_buildable(architecture):
                refusals[family] = f"the {family.name} family has tiles too large for it"
            else:
                by_heuristic[family] = chosen
        if not by_heuristic:
            asked = [family for family in running if family.is_for(workload)] or running
            newest = max(asked, key=self.families.index)
            raise ValueError(refusals[newest])
        return Serving(workload, by_heuristic, refusals, architecture)

    def why_not(self, config: C, workload: W) -> str:
        """Returns why a configuration does not serve a workload on any GPU; "" if it does on
        some."""
        families = [each for each in self.families if type(config) is each.config]
        if not any(family.is_for(workload) for family in families):
            return f"the {config.family} family {_NOT_ASKED}"
        return config.why_not(workload)

    def heuristic_configs(self) -> list[C]:
        """Lists the heuristics' choices of all families, for every dtype and d_head, sorted."""
        chosen = {
            config
            for family in self.families
            for dtype, d_head in product(DType, family.d_heads)
            for config in family.heuristic_configs(dtype, d_head)
        }
        return sorted(chosen, key=sort_key)

    def candidates(
        self, workload: W, arch: str, gpu: str | None = None, among: Sequence[C] | None = None
    ) -> list[C]:
        """Lists the tuner's candidates for a workload on an architecture; the heuristic's choice is
        last.

        gpu: The GPU's name; None: any GPU of the architecture.
        among: Configurations to filter; None: the families' tuning spaces.

        Raises: See ``serving``.
        """
        served = self.serving(workload, gpu or arch, capability_of(arch))
        found = _tuning_space(served, get_gpu_architecture(arch)) if among is None else among
        fitting = (config for config in dict.fromkeys(found) if not served.why_not(config))
        heuristic = served.heuristic_config
        return [*(config for config in fitting if config != heuristic), heuristic]


def _tuning_space(served: Serving[W, C], architecture: GpuArchitecture) -> list[C]:
    """Joins the tuning spaces of the families that may be the fastest for the workload."""
    workload, newest = served.workload, next(iter(served.by_heuristic))
    return [
        config.adapted_to(workload.variant)
        for family in served.by_heuristic
        if family.is_rival or family is newest
        for config in family.tuning_space(workload, architecture)
    ]


def capability_of(gpu: str, capability: Capability | None = None) -> Capability:
    """Returns a GPU's compute capability, derived from its name if it is not given. Raises
    ValueError if no GPU of this name is known."""
    return capability or get_gpu_architecture(gpu).compute_capability
