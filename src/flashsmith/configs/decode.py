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
        rule: (dtype, d_head, fp8_cache, token_scales) -> what serves. Raises ValueError that names
            what the family does not take.
    """

    config: type[DecodeKernelConfig]
    rule: Callable[[DType, int, bool, bool], DecodeKernelConfig]


DECODE_FAMILIES = (DecodeFamily(FlashDecodeKernelConfig, sm80_rule),)  # from the plainest
# Of caches: whether keys and values have 8 bits, and whether each row of them has a scale.
KINDS_OF_CACHE = ((False, False), (True, False), (True, True))


def get_decode_kernel_configs() -> list[DecodeKernelConfig]:
    """What the rules of all families choose, for every dtype, d_head and kind of cache, sorted."""
    keys = list(product(DType, D_HEADS, KINDS_OF_CACHE))
    chosen = (
        family.rule(dtype, d_head, *kind)
        for family in DECODE_FAMILIES
        for dtype, d_head, kind in keys
    )
    return sorted(chosen, key=sort_key)


def choose_decode(
    dtype: DType,
    d_head: int,
    capability: Capability | None,
    fp8_cache: bool = False,
    token_scales: bool = False,
) -> DecodeKernelConfig:
    """The newest family's on a GPU; None: the plainest's, on the emulator.

    d_head: One of kernels.
    fp8_cache: Of keys and values of 8 bits.
    token_scales: Of which each row may have a scale of its own.

    Raises:
        DeviceError: The GPU is too old for every family.
        ValueError: The configuration does not fit the GPU.
    """
    if capability is None:
        return DECODE_FAMILIES[0].rule(dtype, d_head, fp8_cache, token_scales)
    for family in reversed(DECODE_FAMILIES):
        if family.config.runs_on(capability):
            config = family.rule(dtype, d_head, fp8_cache, token_scales)
            architecture = find_architecture(capability)
            require_buildable(config, architecture.name if architecture else None)
            return config
    raise too_old("the GPU", capability)
