"""The families of forward kernels.

A family is one operation on one architecture. This list is the only one: whoever needs to know
which families there are, which of them run on a GPU, or which serve a workload, asks here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashsmith.configs.base import Capability, ForwardKernelConfig
from flashsmith.configs.family import Family, too_old
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.configs.variant import PAGED, Variant
from flashsmith.configs.waves import grid_cost
from flashsmith.configs.workload import Workload, padded_d_head
from flashsmith.dtype import DType
from flashsmith.gpus import count_multiprocessors, find_architecture, get_gpu_architecture

FAMILIES = (SM80_FORWARD, SM90_FORWARD)  # from the plainest
_RATHER = 0.85  # where the model said less than this, measurements always agreed
SUPPORTED_D_HEADS = tuple(sorted({d_head for family in FAMILIES for d_head in family.d_heads}))


def family_of(config: ForwardKernelConfig) -> Family:
    return next(family for family in FAMILIES if type(config) is family.config)


def families_on(capability: Capability | None) -> tuple[Family, ...]:
    """Those that run on a GPU, the newest first; None: on the emulator, the plainest first."""
    if capability is None:
        return FAMILIES
    return tuple(family for family in reversed(FAMILIES) if family.runs_on(capability))


def families_for(gpu: str | None, capability: Capability | None = None) -> tuple[Family, ...]:
    """``families_on`` the GPU, or architecture, of this name; None: the emulator.

    capability: The GPU's, where it is known; None: going by its name.

    Raises:
        ValueError: No GPU of this name is known.
        DeviceError: It is too old for every family.
    """
    if gpu is None:
        return families_on(None)
    capability = capability or get_gpu_architecture(gpu).compute_capability
    if families := families_on(capability):
        return families
    raise too_old(gpu, capability)


def reads_pages_on(gpu: str | None, capability: Capability | None = None) -> bool:
    """Whether kernels of some family take keys in pages on the GPU of this name; None: on the
    emulator. Args, raises: as ``families_for``."""
    return any(
        config.with_room_for(PAGED).serves_variant(PAGED)
        for family in families_for(gpu, capability)
        for config in family.rule_configs(DType.BF16, family.d_heads[0])
    )


@dataclass(frozen=True)
class Serving:
    """Which families serve a workload somewhere.

    Attributes:
        by_rule: What each of them chooses where nothing was measured, the first choice first; at
            least one.
        refusals: Why the other families do not, by their names.
        architecture: What tiles have to fit; None: the emulator, or a GPU newer than the list.
    """

    workload: Workload
    by_rule: Mapping[Family, ForwardKernelConfig]
    refusals: Mapping[str, str]
    architecture: str | None

    @property
    def rule_config(self) -> ForwardKernelConfig:
        return next(iter(self.by_rule.values()))

    @property
    def rule_configs(self) -> list[ForwardKernelConfig]:
        """All that the first choice's family may take here by rule for this dtype and d_head."""
        first, problem = next(iter(self.by_rule)), self.workload.problem
        configs = first.rule_configs(problem.dtype, padded_d_head(problem))
        return [cfg for cfg in configs if cfg.is_buildable(self.architecture)]

    def why_not(self, config: ForwardKernelConfig) -> str:
        """Why a configuration does not serve the workload; "" if it does."""
        family, problem = family_of(config), self.workload.problem
        if family not in self.by_rule:
            return self.refusals[family.name]
        if not config.serves(problem):
            return f"it is for {config.dtype} and d_head {config.d_head}"
        if not config.serves_variant(self.workload.variant):
            return f"it {_none_for(self.workload.variant)}"
        return ""

    def why_rather_the_rule(self, config: ForwardKernelConfig, multiprocessors: int) -> str:
        """Why the rule's choice is to be preferred to a configuration that was measured on another
        fill of the GPU; "" if the model of waves, which tells tiles of one family apart, sees no
        great difference."""
        if type(config) is not type(self.rule_config):
            return ""
        problem = self.workload.problem
        of_rule = grid_cost(self.rule_config, problem, multiprocessors)
        of_config = grid_cost(config, problem, multiprocessors)
        if of_rule < _RATHER * of_config:
            return f"measured on a fuller GPU; the rule's tiles save {1 - of_rule / of_config:.0%}"
        return ""


def serving(workload: Workload, gpu: str | None, capability: Capability | None = None) -> Serving:
    """Which families serve a workload on the GPU, or architecture, of this name (None: on the
    emulator), and why the others do not.

    capability: The GPU's, where it is known; None: going by its name.

    Raises:
        DeviceError: The GPU is too old for every family.
        ValueError: No family takes the problem there: says what the newest does not take. Or no
            GPU of this name is known.
    """
    running = families_for(gpu, capability)
    multiprocessors = None if gpu is None else count_multiprocessors(gpu)
    by_rule: dict[Family, ForwardKernelConfig] = {}
    refusals = {
        family.name: f"the {family.name} family does not run on {gpu}"
        for family in FAMILIES
        if family not in running
    }
    architecture = None if gpu is None else _find_architecture(gpu, capability)
    for family in running:
        try:
            chosen = family.choose(workload, multiprocessors, architecture)
            chosen = chosen.with_room_for(workload.variant)
            if chosen.serves_variant(workload.variant):
                by_rule[family] = chosen
            else:
                refusals[family.name] = f"the {family.name} family {_none_for(workload.variant)}"
        except ValueError as error:
            refusals[family.name] = str(error)
    if not by_rule:
        newest = max(running, key=FAMILIES.index)
        raise ValueError(refusals[newest.name])
    return Serving(workload, by_rule, refusals, architecture)


def _none_for(variant: Variant) -> str:
    return f"has no kernels for {variant.name}"


def _find_architecture(gpu: str, capability: Capability | None) -> str | None:
    """The name of the GPU's architecture; None: it is newer than this list."""
    found = find_architecture(capability) if capability else get_gpu_architecture(gpu)
    return None if found is None else found.name
