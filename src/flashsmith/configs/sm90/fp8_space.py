"""The declared configurations of the sm90 family's forward of 8 bits."""

from __future__ import annotations

from dataclasses import replace

from flashsmith.configs.legality import tiles_of
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.configs.sm90.forward_space import Sm90Tiles, make_sm90_config
from flashsmith.dtype import DType

# Those of 16 bits, with rows of Q and K half as long.
_SCORE_TILES = {
    64: Sm90Tiles(4, 64, 4, Q_steps_in_registers=0, ping_pong=True),
    96: Sm90Tiles(2, 128, 2, Q_steps_in_registers=3, ping_pong=False),
    128: Sm90Tiles(2, 128, 2, Q_steps_in_registers=4, ping_pong=True),
    192: Sm90Tiles(2, 96, 2, Q_steps_in_registers=4, ping_pong=False),
    256: Sm90Tiles(2, 64, 2, Q_steps_in_registers=4, ping_pong=False),
}
# With V of 8 bits; with sums of two levels where O leaves registers for them.
_VALUE_TILES = {
    64: Sm90Tiles(3, 96, 4, Q_steps_in_registers=0, ping_pong=True),
    96: Sm90Tiles(2, 128, 3, Q_steps_in_registers=0, ping_pong=True),
    128: Sm90Tiles(2, 128, 2, Q_steps_in_registers=0, ping_pong=True),
    192: Sm90Tiles(2, 96, 2, Q_steps_in_registers=4, ping_pong=False),
    256: Sm90Tiles(2, 96, 2, Q_steps_in_registers=0, ping_pong=False),
}
_LONGEST_TWO_LEVEL = 128  # d_head


def make_fp8_config(
    dtype: DType, d_head: int, tiles: Sm90Tiles, *, fp8_values: bool, two_level: bool = False
) -> Sm90ForwardKernelConfig:
    """As ``make_sm90_config``, in groups of 16 heads.

    dtype: Of O, and of V unless that has 8 bits.
    """
    config = make_sm90_config(
        dtype, d_head, tiles, heads_per_group=16, stale_maximum=not fp8_values
    )
    config = replace(
        config, tma_store=True, fp8_scores=True, fp8_values=fp8_values, two_level=two_level
    )
    if fp8_values:  # the weight of the reference itself is exact, and often the largest by far
        config = replace(config, lazy_rescale_log2=0)
    return config if config.is_buildable() else replace(config, tma_store=False)


def fp8_rule(dtype: DType, d_head: int, fp8_values: bool) -> Sm90ForwardKernelConfig:
    """Tiles by d_head alone, for a full GPU.

    dtype: Of O, and of V unless that has 8 bits.

    Raises:
        ValueError: The family does not take d_head.
    """
    tiles = tiles_of(_VALUE_TILES if fp8_values else _SCORE_TILES, d_head)
    two_level = fp8_values and d_head <= _LONGEST_TWO_LEVEL
    return make_fp8_config(dtype, d_head, tiles, fp8_values=fp8_values, two_level=two_level)


def get_fp8_kernel_configs() -> list[Sm90ForwardKernelConfig]:
    """What the rule chooses, for every dtype, d_head and kind of V, sorted."""
    return sorted(
        fp8_rule(dtype, d_head, fp8_values)
        for dtype in DType
        for d_head in _SCORE_TILES
        for fp8_values in (False, True)
    )
