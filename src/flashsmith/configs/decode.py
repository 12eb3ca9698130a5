"""The families of decode, and which configuration serves a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from flashsmith.configs.base import Capability, DecodeKernelConfig
from flashsmith.configs.family import too_old
from flashsmith.configs.kernel_id import require_buildable, sort_key
from flashsmith.configs.sm80.decode import FlashDecodeKernelConfig
from flashsmith.configs.sm80.decode_space import rule as sm80_rule
from flashsmith.configs.workload import D_HEADS
from flashsmith.dtype import DType
from flashsmith.gpus import find_architecture


@dataclass(frozen=True)
class DecodeFamily:
    """One family.

    Args:
        config: The class of its configurations.
        rule: (dtype, d_head, fp8_cache) -> what serves. Raises ValueError that names what the
            family does not take.
    """

    config: type[DecodeKernelConfig]
    rule: Callable[[DType, int, bool], DecodeKernelConfig]


DECODE_FAMILIES = (DecodeFamily(FlashDecodeKernelConfig, sm80_rule),)  # from the plainest


def get_decode_kernel_configs() -> list[DecodeKernelConfig]:
    """What the rules of all families choose, for every dtype, d_head and kind of cache, sorted."""
    keys = list(product(DType, D_HEADS, (False, True)))
    chosen = (family.rule(*key) for family in DECODE_FAMILIES for key in keys)
    return sorted(chosen, key=sort_key)


def choose_decode(
    dtype: DType, d_head: int, capability: Capability | None, fp8_cache: bool = False
) -> DecodeKernelConfig:
    """The newest family's on a GPU; None: the plainest's, on the emulator.

    d_head: One of kernels.
    fp8_cache: Of keys and values of 8 bits.

    Raises:
        DeviceError: The GPU is too old for every family.
        ValueError: The configuration does not fit the GPU.
    """
    if capability is None:
        return DECODE_FAMILIES[0].rule(dtype, d_head, fp8_cache)
    for family in reversed(DECODE_FAMILIES):
        if family.config.runs_on(capability):
            config = family.rule(dtype, d_head, fp8_cache)
            architecture = find_architecture(capability)
            require_buildable(config, architecture.name if architecture else None)
            return config
    raise too_old("the GPU", capability)
