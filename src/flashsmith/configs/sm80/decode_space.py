"""The declared configurations of the sm80 family's decode."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from flashsmith.configs.legality import tiles_of
from flashsmith.configs.sm80.decode import FlashDecodeKernelConfig
from flashsmith.configs.sm80.forward import MMA_M
from flashsmith.dtype import DType


class DecodeTiles(NamedTuple):
    """All of a configuration but the element type, d_head and B_r."""

    B_c: int
    n_warps: int
    n_stages: int
    blocks_per_SM: int


# By B_r. About 96 KB of stages a block: two on a multiprocessor of Hopper, one on older ones. Less
# for rows of Q that are in shared memory, too. Of many rows a block leaves many sums, so there is
# one block of twice the warps, where registers allow it.
_RULE = {
    16: {
        64: DecodeTiles(16, 4, n_stages=5, blocks_per_SM=2),
        96: DecodeTiles(16, 4, n_stages=4, blocks_per_SM=2),
        128: DecodeTiles(16, 4, n_stages=3, blocks_per_SM=2),
        192: DecodeTiles(16, 2, n_stages=3, blocks_per_SM=2),
        256: DecodeTiles(16, 2, n_stages=2, blocks_per_SM=3),
    },
    32: {
        64: DecodeTiles(16, 8, n_stages=6, blocks_per_SM=1),
        96: DecodeTiles(16, 8, n_stages=4, blocks_per_SM=1),
        128: DecodeTiles(16, 8, n_stages=3, blocks_per_SM=1),
        192: DecodeTiles(16, 4, n_stages=3, blocks_per_SM=2),
        256: DecodeTiles(16, 4, n_stages=3, blocks_per_SM=2),
    },
    64: {
        64: DecodeTiles(32, 8, n_stages=6, blocks_per_SM=1),
        96: DecodeTiles(32, 8, n_stages=4, blocks_per_SM=1),
        128: DecodeTiles(32, 8, n_stages=3, blocks_per_SM=1),
        192: DecodeTiles(16, 4, n_stages=5, blocks_per_SM=2),
        256: DecodeTiles(16, 4, n_stages=5, blocks_per_SM=2),
    },
}
ROWS = tuple(_RULE)


# With scales of tokens beside keys and values. With the stages of above two of these would not fit
# the smallest GPUs' 99 KB.
_RULE_FOR_SCALES = _RULE[MMA_M] | {
    96: DecodeTiles(16, 4, n_stages=3, blocks_per_SM=2),
    128: DecodeTiles(16, 4, n_stages=2, blocks_per_SM=2),
}


def rule(
    dtype: DType,
    d_head: int,
    fp8_cache: bool = False,
    rows: int = MMA_M,
    token_scales: bool = False,
) -> FlashDecodeKernelConfig:
    """One configuration for each d_head, kind of cache and B_r: the least of ``ROWS`` that takes
    ``rows`` rows of Q, or the greatest; 16 with token_scales. Raises ValueError for others.

    Of keys with half the bytes a stage holds twice as many.
    """
    B_r, tiles = MMA_M, _RULE_FOR_SCALES
    if not token_scales:
        B_r = next((most for most in ROWS if rows <= most), ROWS[-1])
        tiles = _RULE[B_r]
    config = FlashDecodeKernelConfig(dtype, d_head, B_r, *tiles_of(tiles, d_head))
    if not fp8_cache:
        return config
    return replace(config, B_c=2 * config.B_c, fp8_cache=True, token_scales=token_scales)
