"""The declared configurations of the sm80 family's decode."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import NamedTuple

from flashsmith.configs.legality import tiles_of
from flashsmith.configs.sm80.decode import SUPPORTED_VALUES, FlashDecodeKernelConfig
from flashsmith.configs.sm80.forward import MMA_M
from flashsmith.configs.workload import DecodeWorkload, WorkTiles
from flashsmith.gpus import GpuArchitecture


class DecodeTiles(NamedTuple):
    """All fields of a configuration but the element type, d_head and B_r."""

    B_c: int
    n_warps: int
    n_stages: int
    blocks_per_SM: int


# The tiles by B_r and d_head. A block has about 96 KB of stages: two blocks fit on a Hopper SM, one
# on older ones. A block of many rows leaves a large partial result, so there is one block of twice
# the warps if registers allow it.
_HEURISTIC = {
    16: {
        64: DecodeTiles(32, 4, n_stages=3, blocks_per_SM=2),
        96: DecodeTiles(16, 4, n_stages=4, blocks_per_SM=2),
        128: DecodeTiles(16, 4, n_stages=3, blocks_per_SM=2),
        192: DecodeTiles(16, 2, n_stages=3, blocks_per_SM=2),
        256: DecodeTiles(16, 4, n_stages=2, blocks_per_SM=1),
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
ROWS = tuple(_HEURISTIC)


def _of_fp8(tiles: DecodeTiles) -> DecodeTiles:
    """Returns tiles for an FP8 cache: with half the bytes a stage holds twice as many keys."""
    return tiles._replace(B_c=2 * tiles.B_c)


_HEURISTIC_FOR_FP8 = {
    B_r: {d: _of_fp8(tiles) for d, tiles in _HEURISTIC[B_r].items()} for B_r in ROWS
}
_HEURISTIC_FOR_FP8[16] |= {
    64: DecodeTiles(32, 4, n_stages=5, blocks_per_SM=2),
    256: DecodeTiles(32, 2, n_stages=2, blocks_per_SM=3),
}

# The tiles for per-token scales. With the stages above, two blocks with scales would not fit the
# smallest GPUs' 99 KB.
_HEURISTIC_FOR_SCALES = _HEURISTIC_FOR_FP8[16] | {
    96: DecodeTiles(32, 4, n_stages=3, blocks_per_SM=2),
    128: DecodeTiles(32, 4, n_stages=2, blocks_per_SM=2),
}

# The tiles by B_r, d_head and the number of work tiles, for a 16-bit cache; what is missing here
# takes the tiles above. Where a few SMs share a work tile, blocks of many warps leave one partial
# result of an SM. Where SMs have up to three work tiles each, small blocks and more of them keep an
# SM busy that begins or ends one. The blocks for many tiles also replace those that are too large
# for a GPU's shared memory. Measured on an H200 (docs/log/decode.md).
_SOME, _FILLING = WorkTiles.SOME, WorkTiles.FILLING
_SEVERAL, _MANY = WorkTiles.SEVERAL, WorkTiles.MANY
_HEURISTIC_BY_TILES = {
    16: {
        64: {
            **dict.fromkeys((_FILLING, _SEVERAL), DecodeTiles(32, 8, n_stages=3, blocks_per_SM=1)),
            _MANY: DecodeTiles(32, 2, n_stages=3, blocks_per_SM=4),
        },
        96: dict.fromkeys(
            (_SOME, _FILLING, _SEVERAL, _MANY), DecodeTiles(32, 8, n_stages=2, blocks_per_SM=1)
        ),
        128: {
            _SOME: DecodeTiles(16, 8, n_stages=3, blocks_per_SM=1),
            _SEVERAL: DecodeTiles(32, 2, n_stages=2, blocks_per_SM=3),
        },
        256: {_MANY: DecodeTiles(16, 2, n_stages=2, blocks_per_SM=3)},
    },
    32: {
        64: dict.fromkeys(
            (_SOME, _FILLING, _SEVERAL, _MANY), DecodeTiles(64, 4, n_stages=3, blocks_per_SM=2)
        ),
        128: {
            _SOME: DecodeTiles(32, 4, n_stages=3, blocks_per_SM=2),
            **dict.fromkeys(
                (_FILLING, _SEVERAL, _MANY), DecodeTiles(32, 8, n_stages=3, blocks_per_SM=1)
            ),
        },
    },
}
_HEURISTIC_FOR_MANY_FP8_TILES = {128: DecodeTiles(32, 2, n_stages=3, blocks_per_SM=4)}


def heuristic(workload: DecodeWorkload) -> FlashDecodeKernelConfig:
    """Returns one configuration for each d_head, kind of cache and B_r: the min of ``ROWS`` that
    covers the workload's rows, or the max; 16 with per-token scales. Some have others by the number
    of work tiles. Raises ValueError for other d_heads. Scales of a 16-bit cache are refused
    elsewhere."""
    per_token_scale = workload.fp8_cache and workload.per_token_scale
    B_r = next((maximum for maximum in ROWS if workload.rows <= maximum), ROWS[-1])
    if per_token_scale:
        B_r, table = MMA_M, _HEURISTIC_FOR_SCALES
    elif workload.fp8_cache:
        table = _HEURISTIC_FOR_FP8[B_r]
        if workload.tiles is _MANY and B_r == MMA_M:
            table = table | _HEURISTIC_FOR_MANY_FP8_TILES
    else:
        table = _HEURISTIC[B_r]
        by_tiles = _HEURISTIC_BY_TILES.get(B_r, {}).get(workload.d_head, {})
        if workload.tiles in by_tiles:
            table = table | {workload.d_head: by_tiles[workload.tiles]}
    tiles = tiles_of(table, workload.d_head)
    return FlashDecodeKernelConfig(
        workload.dtype, workload.d_head, B_r, *tiles, workload.fp8_cache, per_token_scale
    )


def tuning_space(
    workload: DecodeWorkload, architecture: GpuArchitecture
) -> list[FlashDecodeKernelConfig]:
    """Returns all B_c, numbers of warps and of blocks for the heuristic's B_r and kind of cache,
    with as many stages as an SM's shared memory then holds."""
    usual = heuristic(workload)
    values = (SUPPORTED_VALUES[name] for name in ("B_c", "n_warps", "blocks_per_SM"))
    found = []
    for B_c, n_warps, blocks in product(*values):
        tiles = replace(usual, B_c=B_c, n_warps=n_warps, blocks_per_SM=blocks)
        of_stages = (replace(tiles, n_stages=n) for n in reversed(SUPPORTED_VALUES["n_stages"]))
        fitting = (config for config in of_stages if _fits(config, architecture))
        if (config := next(fitting, None)) is not None:
            found.append(config)
    return found


def _fits(config: FlashDecodeKernelConfig, architecture: GpuArchitecture) -> bool:
    """Returns whether an SM holds as many blocks as the configuration says."""
    maximum = architecture.blocks_by_shared_memory(config.shared_memory_bytes)
    return config.blocks_per_SM <= maximum and config.is_buildable(architecture.name)
