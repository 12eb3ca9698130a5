"""The families of kernels, each one operation on one architecture.

This is the only list of families: all code that asks which families exist, run on a GPU, or serve a
workload reads it.
"""

from __future__ import annotations

from typing import Any

from flashsmith.configs.base import (
    BackwardKernelConfig,
    Capability,
    DecodeKernelConfig,
    ForwardKernelConfig,
    KernelConfig,
)
from flashsmith.configs.decode import as_tuned
from flashsmith.configs.family import C, Family
from flashsmith.configs.operation import Operation
from flashsmith.configs.sm80.family import SM80_FAMILIES
from flashsmith.configs.sm90.family import SM90_FAMILIES
from flashsmith.configs.variant import PAGED
from flashsmith.configs.workload import BackwardWorkload, DecodeWorkload, Workload
from flashsmith.dtype import DType

FAMILIES: tuple[Family[Any, Any], ...] = (*SM80_FAMILIES, *SM90_FAMILIES)  # plainest first


def _families_of(operation: str) -> tuple[Family[Any, Any], ...]:
    return tuple(family for family in FAMILIES if family.config.operation == operation)


FORWARD: Operation[Workload, ForwardKernelConfig] = Operation(
    "forward", Workload, _families_of("forward")
)
BACKWARD: Operation[BackwardWorkload, BackwardKernelConfig] = Operation(
    "backward", BackwardWorkload, _families_of("backward")
)
DECODE: Operation[DecodeWorkload, DecodeKernelConfig] = Operation(
    "decode", DecodeWorkload, _families_of("decode"), as_tuned
)
OPERATIONS: tuple[Operation[Any, Any], ...] = (FORWARD, BACKWARD, DECODE)


def family_of(config: C) -> Family[Any, C]:
    """Returns the first family with configurations of this class."""
    return next(family for family in FAMILIES if type(config) is family.config)


def operation_of(config: KernelConfig) -> Operation[Any, Any]:
    return next(each for each in OPERATIONS if each.name == config.operation)


def reads_pages_on(gpu: str | None, capability: Capability | None = None) -> bool:
    """Returns whether some family's forward kernels read paged keys on the GPU of this name; None:
    the emulator. Args, raises: see ``Operation.families_for``."""
    return any(
        config.adapted_to(PAGED).serves_variant(PAGED)
        for family in FORWARD.families_for(gpu, capability)
        for config in family.heuristic_configs(DType.BF16, family.d_heads[0])
    )
