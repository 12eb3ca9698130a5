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


# About 96 KB of stages a block: two on a multiprocessor of Hopper, one on older ones. Less for rows
# of Q that are in shared memory, too.
_RULE = {
    64: DecodeTiles(16, 4, n_stages=5, blocks_per_SM=2),
    96: DecodeTiles(16, 4, n_stages=4, blocks_per_SM=2),
    128: DecodeTiles(16, 4, n_stages=3, blocks_per_SM=2),
    192: DecodeTiles(16, 2, n_stages=3, blocks_per_SM=2),
    256: DecodeTiles(16, 2, n_stages=2, blocks_per_SM=3),
}


# With scales of tokens in the stages the same would not fit the smallest GPUs' 99 KB.
_RULE_FOR_SCALES = _RULE | {
    96: DecodeTiles(16, 4, n_stages=3, blocks_per_SM=2),
    128: DecodeTiles(16, 4, n_stages=2, blocks_per_SM=2),
}


def rule(
    dtype: DType, d_head: int, fp8_cache: bool = False, token_scales: bool = False
) -> FlashDecodeKernelConfig:
    """One configuration for each d_head and kind of cache. Raises ValueError for others.

    Of keys with half the bytes a stage holds twice as many.
    """
    tiles = tiles_of(_RULE_FOR_SCALES if token_scales else _RULE, d_head)
    config = FlashDecodeKernelConfig(dtype, d_head, MMA_M, *tiles)
    if not fp8_cache:
        return config
    return replace(config, B_c=2 * config.B_c, fp8_cache=True, token_scales=token_scales)
