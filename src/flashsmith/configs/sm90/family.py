"""The families of the sm90 architecture."""

from typing import Any

from flashsmith import settings
from flashsmith.configs.backward import backward_family
from flashsmith.configs.decode import decode_family
from flashsmith.configs.family import DeclaredSets, Family
from flashsmith.configs.forward import forward_family
from flashsmith.configs.sm90 import (
    backward_space,
    decode_space,
    forward_space,
    split_backward_space,
)
from flashsmith.configs.sm90.backward import SUPPORTED_D_HEADS as BACKWARD_D_HEADS
from flashsmith.configs.sm90.backward import Sm90BackwardKernelConfig
from flashsmith.configs.sm90.decode import Sm90DecodeKernelConfig
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.configs.sm90.forward_legality import SUPPORTED_D_HEADS
from flashsmith.configs.sm90.split_backward import Sm90SplitBackwardKernelConfig
from flashsmith.configs.sm90.tile_schedule import (
    packed_if_it_pays,
    packed_version,
    schedule_cost,
    window_rank,
)

SM90_FORWARD = forward_family(
    Sm90ForwardKernelConfig,
    forward_space.heuristic,
    "one configuration of the sm90 family for each d_head, with smaller tiles where large ones "
    "would leave SMs idle",
    heuristic_lengths=(128,),
    small_tiles=forward_space.small_tiles,
    d_heads=SUPPORTED_D_HEADS,
    sets=DeclaredSets(
        settings.SM90_SETS,
        forward_space.get_sm90_kernel_progression_configs,
        forward_space.get_sm90_autotuning_kernel_configs,
    ),
    suited=packed_if_it_pays,
    other_versions=packed_version,
    schedule_cost=schedule_cost,
    window_rank=window_rank,
)
SM90_SPLIT_BACKWARD = backward_family(
    Sm90SplitBackwardKernelConfig,
    split_backward_space.heuristic,
    "one configuration for each d_head, with dQ and dK, dV by kernels of their own",
    split_backward_space.tuning_space,
)
SM90_BACKWARD = backward_family(
    Sm90BackwardKernelConfig,
    backward_space.heuristic,
    "one configuration for each d_head, with sums in order where queries see few keys",
    backward_space.tuning_space,
    d_heads=BACKWARD_D_HEADS,
)
SM90_DECODE = decode_family(
    Sm90DecodeKernelConfig,
    decode_space.heuristic,
    "one configuration for each d_head and number of rows",
    decode_space.ROWS,
    decode_space.tuning_space,
    min_rows=decode_space.min_rows,
    by_boxes=True,
)
# The plainest family comes first.
SM90_FAMILIES: tuple[Family[Any, Any], ...] = (
    SM90_FORWARD,
    SM90_SPLIT_BACKWARD,
    SM90_BACKWARD,
    SM90_DECODE,
)
