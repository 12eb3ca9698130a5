"""The declared configurations of the sm90 family's FP8 forward."""

from __future__ import annotations

from dataclasses import replace

from flashsmith.configs.cost_model import grid_cost
from flashsmith.configs.legality import tiles_of
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.configs.sm90.forward_space import Sm90Tiles, make_sm90_config
from flashsmith.configs.variant import Variant
from flashsmith.configs.workload import d_head_of_rows
from flashsmith.dtype import DType
from flashsmith.problem import Problem

# The tiles were measured on the H200 at d_head 64 and 128, docs/fp8.md; others are the 16-bit
# tiles, with half the bytes of Q and K. If there are several, the cost model chooses; the first is
# for a full GPU.
_SCORE_TILES = {
    64: (Sm90Tiles(4, 64, 4, Q_steps_in_registers=0, ping_pong=True),),
    96: (Sm90Tiles(2, 128, 2, Q_steps_in_registers=3, ping_pong=False),),
    128: (
        Sm90Tiles(3, 80, 3, Q_steps_in_registers=0, ping_pong=True),
        Sm90Tiles(2, 128, 2, Q_steps_in_registers=4, ping_pong=False),
    ),
    192: (Sm90Tiles(2, 96, 2, Q_steps_in_registers=4, ping_pong=False),),
    256: (Sm90Tiles(2, 64, 2, Q_steps_in_registers=4, ping_pong=False),),
}
# The tiles with FP8 V; two-level sums are on if O leaves registers for them.
_VALUE_TILES = {
    64: (Sm90Tiles(3, 96, 4, Q_steps_in_registers=0, ping_pong=True, ping_pong_until_exp=True),),
    96: (Sm90Tiles(2, 128, 3, Q_steps_in_registers=0, ping_pong=True),),
    128: (Sm90Tiles(2, 128, 2, Q_steps_in_registers=0, ping_pong=True, ping_pong_until_exp=True),),
    192: (Sm90Tiles(2, 96, 2, Q_steps_in_registers=4, ping_pong=False),),
    256: (Sm90Tiles(2, 96, 2, Q_steps_in_registers=0, ping_pong=False),),
}
_LONGEST_TWO_LEVEL = 128  # d_head


def make_fp8_config(
    dtype: DType, d_head: int, tiles: Sm90Tiles, *, fp8_values: bool, two_level: bool = False
) -> Sm90ForwardKernelConfig:
    """Returns ``make_sm90_config`` for FP8, in groups of 16 heads.

    dtype: The type of O, and of V unless V is FP8.
    """
    config = make_sm90_config(
        dtype, d_head, tiles, heads_per_group=16, stale_maximum=not fp8_values
    )
    config = replace(
        config, tma_store=True, fp8_scores=True, fp8_values=fp8_values, two_level=two_level
    )
    if fp8_values:  # the weight of the max is exact, and often the largest by far
        config = replace(config, lazy_rescale_log2=0)
    return config if config.is_buildable() else replace(config, tma_store=False)


def fp8_candidates(dtype: DType, d_head: int, fp8_values: bool) -> list[Sm90ForwardKernelConfig]:
    """Returns the configurations for a d_head; the first is for a full GPU.

    dtype: The type of O, and of V unless V is FP8.

    Raises:
        ValueError: The family does not support d_head.
    """
    two_level = fp8_values and d_head <= _LONGEST_TWO_LEVEL
    return [
        make_fp8_config(dtype, d_head, tiles, fp8_values=fp8_values, two_level=two_level)
        for tiles in tiles_of(_VALUE_TILES if fp8_values else _SCORE_TILES, d_head)
    ]


def fp8_heuristic(
    problem: Problem, fp8_values: bool, variant: Variant, num_sms: int | None
) -> Sm90ForwardKernelConfig:
    """Returns the configuration of ``fp8_candidates``, with room for the variant, of min cost by
    ``cost_model``.

    problem: The problem, with O's dtype.
    num_sms: The GPU's SMs; None: the GPU is assumed to be full.

    Raises: See ``fp8_candidates``.
    """
    d_head = d_head_of_rows(problem.d_head, problem.d_v)
    heuristics = fp8_candidates(problem.dtype, d_head, fp8_values)
    configs = [config.adapted_to(variant) for config in heuristics]
    if num_sms is None:
        return configs[0]
    return min(configs, key=lambda config: grid_cost(config, problem, num_sms))


def get_fp8_kernel_configs() -> list[Sm90ForwardKernelConfig]:
    """Returns the heuristic's choices for every dtype, d_head and kind of V, sorted."""
    return sorted(
        config
        for dtype in DType
        for d_head in _SCORE_TILES
        for fp8_values in (False, True)
        for config in fp8_candidates(dtype, d_head, fp8_values)
    )
