"""The declared configurations of the sm90 family's decode."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from flashsmith.configs.legality import tiles_of
from flashsmith.configs.sm90.decode import Sm90DecodeKernelConfig
from flashsmith.configs.sm90.forward_legality import MAX_STAGES
from flashsmith.configs.sm90.hardware import WGMMA_M
from flashsmith.configs.workload import DecodeWorkload, WorkTiles
from flashsmith.gpus import GpuArchitecture


class DecodeTiles(NamedTuple):
    """The keys of a stage, and the number of stages."""

    B_c: int
    n_stages: int


# The tiles by consumer warpgroups and d_head. A block of keys has whole pages of 64 rows. Blocks of
# 128 keys were faster wherever both were measured (docs/log/decode.md).
_HEURISTIC = {
    1: {
        64: DecodeTiles(128, n_stages=5),
        96: DecodeTiles(64, n_stages=6),
        128: DecodeTiles(128, n_stages=2),
        192: DecodeTiles(64, n_stages=4),
        256: DecodeTiles(64, n_stages=3),
    },
    2: {
        64: DecodeTiles(128, n_stages=4),
        96: DecodeTiles(128, n_stages=3),
        128: DecodeTiles(128, n_stages=2),
        192: DecodeTiles(64, n_stages=3),
        256: DecodeTiles(64, n_stages=2),
    },
}
ROWS = tuple(n * WGMMA_M for n in _HEURISTIC)


def min_rows(workload: DecodeWorkload) -> int:
    """Returns the rows from which on wgmma is faster than mma.sync, whose warps have 16 rows each.
    Up to 32 rows its blocks are small enough for several on an SM; where few work tiles are split,
    and for other d_heads, that was not measured."""
    is_measured = workload.d_head in (64, 128) and workload.tiles is not WorkTiles.FEW
    return 33 if is_measured else 17


def heuristic(workload: DecodeWorkload) -> Sm90DecodeKernelConfig:
    """Returns one configuration for each d_head and B_r: the min of ``ROWS`` that covers the
    workload's rows, or the max. Raises ValueError for FP8 caches and other d_heads."""
    if workload.fp8_cache or workload.per_token_scale:
        raise ValueError("k_cache is float8_e4m3fn; the sm90 family's decode takes q's dtype")
    n_warpgroups = min(-(-max(workload.rows, 1) // WGMMA_M), max(_HEURISTIC))
    return _config(workload, n_warpgroups, *tiles_of(_HEURISTIC[n_warpgroups], workload.d_head))


def tuning_space(
    workload: DecodeWorkload, architecture: GpuArchitecture
) -> list[Sm90DecodeKernelConfig]:
    """Returns configurations of the heuristic's rows and of fewer, with both sizes of stages, and
    as many stages as shared memory holds, or one less."""
    max_warpgroups = heuristic(workload).n_warpgroups
    found = []
    for n_warpgroups, B_c in product(range(1, max_warpgroups + 1), (64, 128)):
        fitting = [
            config
            for n_stages in reversed(range(2, MAX_STAGES + 1))
            if (config := _config(workload, n_warpgroups, B_c, n_stages)).is_buildable(
                architecture.name
            )
        ]
        found += fitting[:2]
    return found


def _config(
    workload: DecodeWorkload, n_warpgroups: int, B_c: int, n_stages: int
) -> Sm90DecodeKernelConfig:
    return Sm90DecodeKernelConfig(
        workload.dtype, workload.d_head, n_warpgroups * WGMMA_M, B_c, n_warpgroups, n_stages,
        ping_pong=n_warpgroups > 1,
    )  # fmt: skip
