"""The families of the backward, and which configuration serves a workload.

Each family has a rule by d_head; a configuration may suit itself to a workload's mask and lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import product

from flashsmith.configs.base import BackwardKernelConfig, Capability
from flashsmith.configs.family import too_old
from flashsmith.configs.kernel_id import sort_key
from flashsmith.configs.sm80.backward import FlashBackwardKernelConfig
from flashsmith.configs.sm80.backward_space import rule as sm80_rule
from flashsmith.configs.sm80.sums_backward import Sm80SumsBackwardKernelConfig
from flashsmith.configs.sm80.sums_backward_space import rule as sm80_sums_rule
from flashsmith.configs.sm80.sums_backward_space import small_rule as sm80_small_sums_rule
from flashsmith.configs.sm90.backward import Sm90BackwardKernelConfig
from flashsmith.configs.sm90.backward_space import rule as sm90_rule
from flashsmith.configs.sm90.split_backward import Sm90SplitBackwardKernelConfig
from flashsmith.configs.sm90.split_backward_space import rule as sm90_split_rule
from flashsmith.configs.variant import VARIANTS
from flashsmith.configs.workload import D_HEADS, Workload, padded_d_head
from flashsmith.dtype import DType
from flashsmith.gpus import find_architecture
from flashsmith.problem import Problem


@dataclass(frozen=True)
class BackwardFamily:
    """One family.

    Args:
        config: The class of its configurations.
        rule: (dtype, d_head) -> what serves. Raises ValueError that names what the family does not
            take.
        least: The compute capability from which on the rule is asked.
    """

    config: type[BackwardKernelConfig]
    rule: Callable[[DType, int], BackwardKernelConfig]
    least: Capability = (8, 0)


_LENGTHS = (256, 8192)  # that stand for all others where a rule goes by them
BACKWARD_FAMILIES = (  # from the plainest
    BackwardFamily(FlashBackwardKernelConfig, sm80_rule),
    BackwardFamily(Sm80SumsBackwardKernelConfig, sm80_small_sums_rule),
    BackwardFamily(Sm80SumsBackwardKernelConfig, sm80_sums_rule, least=(9, 0)),
    BackwardFamily(Sm90SplitBackwardKernelConfig, sm90_split_rule),
    BackwardFamily(Sm90BackwardKernelConfig, sm90_rule),
)


def get_backward_kernel_configs() -> list[BackwardKernelConfig]:
    """What the rules of all families choose, for every dtype and d_head, sorted."""
    found: set[BackwardKernelConfig] = set()
    for family, dtype, d_head in product(BACKWARD_FAMILIES, DType, D_HEADS):
        with suppress(ValueError):  # not of this family
            config = family.rule(dtype, d_head)
            for length, variant in product(_LENGTHS, VARIANTS):
                workload = Workload(Problem.square(dtype, d_head, 1, 1, length), variant)
                found |= {c.suited_to(workload) for c in (config, config.made_deterministic())}
    return sorted(found, key=sort_key)


def choose_backward(
    workload: Workload, capability: Capability | None, *, deterministic: bool = False
) -> BackwardKernelConfig:
    """The newest family's that serves a workload on a GPU; None: the plainest's, on the emulator.

    Raises:
        DeviceError: The GPU is too old for every family.
        ValueError: No family takes the problem; says what the plainest does not take.
    """
    problem, refusal = workload.problem, None
    d_head = padded_d_head(problem)
    for family in _families_on(capability):
        try:
            config = family.rule(problem.dtype, d_head)
            if deterministic:
                config = config.made_deterministic()
            config = config.suited_to(workload)
            config = config.with_room_for(workload.variant)
        except ValueError as error:
            refusal = error
            continue
        architecture = find_architecture(capability) if capability else None
        if (
            config.is_buildable(architecture.name if architecture else None)
            and config.serves_variant(workload.variant)
            and (config.is_deterministic or not deterministic)
        ):
            return config
    if refusal is not None:
        raise refusal
    raise ValueError(f"{workload} has no backward on this GPU")


def _families_on(capability: Capability | None) -> tuple[BackwardFamily, ...]:
    if capability is None:
        return BACKWARD_FAMILIES
    families = tuple(
        family
        for family in reversed(BACKWARD_FAMILIES)
        if family.config.runs_on(capability) and capability >= family.least
    )
    if families:
        return families
    raise too_old("the GPU", capability)
