"""The families of the sm80 architecture, which run on all later architectures."""

from typing import Any

from flashsmith import settings
from flashsmith.configs.backward import backward_family
from flashsmith.configs.decode import decode_family
from flashsmith.configs.family import DeclaredSets, Family
from flashsmith.configs.forward import forward_family
from flashsmith.configs.sm80 import (
    backward_space,
    decode_space,
    forward_space,
    sums_backward_space,
)
from flashsmith.configs.sm80.backward import FlashBackwardKernelConfig
from flashsmith.configs.sm80.decode import FlashDecodeKernelConfig
from flashsmith.configs.sm80.forward import SUPPORTED_VALUES, FlashForwardKernelConfig
from flashsmith.configs.sm80.sums_backward import Sm80SumsBackwardKernelConfig

_BLOCKS = ("B_r", "B_c", "n_warps")
SM80_FORWARD = forward_family(
    FlashForwardKernelConfig,
    forward_space.heuristic,
    "one configuration for each d_head, and one of half the rows where queries see few keys or "
    "large tiles would leave SMs idle",
    heuristic_lengths=(64, 4096),
    small_tiles=forward_space.small_tiles,
    d_heads=SUPPORTED_VALUES["d_head"],
    sets=DeclaredSets(
        settings.SM80_SETS,
        forward_space.get_kernel_progression_configs,
        forward_space.get_autotuning_kernel_configs,
        tuple((name, SUPPORTED_VALUES[name]) for name in _BLOCKS),
    ),
    is_rival=False,  # sm90's forward was faster wherever both were measured
)
SM80_BACKWARD = backward_family(
    FlashBackwardKernelConfig,
    backward_space.heuristic,
    "one configuration for each d_head, which computes dQ by itself",
    backward_space.tuning_space,
)
# This family is for GPUs with less shared memory.
SM80_SMALL_SUMS_BACKWARD = backward_family(
    Sm80SumsBackwardKernelConfig,
    sums_backward_space.small_heuristic,
    "one configuration for each d_head, which adds dQ up in memory",
    sums_backward_space.tuning_space,
    d_heads=sums_backward_space.SMALL_D_HEADS,
)
SM80_SUMS_BACKWARD = backward_family(
    Sm80SumsBackwardKernelConfig,
    sums_backward_space.heuristic,
    "one configuration for each d_head, which adds dQ up in memory",
    sums_backward_space.tuning_space,
    minimum=(9, 0),
)
SM80_DECODE = decode_family(
    FlashDecodeKernelConfig,
    decode_space.heuristic,
    "one configuration for each d_head, kind of cache and number of rows, of smaller blocks where "
    "work tiles are many",
    decode_space.ROWS,
    decode_space.tuning_space,
)
# The plainest family comes first.
SM80_FAMILIES: tuple[Family[Any, Any], ...] = (
    SM80_FORWARD,
    SM80_BACKWARD,
    SM80_SMALL_SUMS_BACKWARD,
    SM80_SUMS_BACKWARD,
    SM80_DECODE,
)
