"""The declared configurations of the sm80 sums backward."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from flashsmith.configs.legality import tiles_of
from flashsmith.configs.sm80.backward import STATISTICS_ROWS
from flashsmith.configs.sm80.sums_backward import (
    SUPPORTED_VALUES,
    Sm80SumsBackwardKernelConfig,
)
from flashsmith.dtype import DType


class SumsBackwardTiles(NamedTuple):
    """All fields of a configuration but dtype, d_head and B_r."""

    B_c: int
    n_warps: int
    n_stages: int
    column_groups: int


# The tiles were measured on the H200, docs/log/sm80-backward.md.
_HEURISTIC = {
    64: SumsBackwardTiles(128, 4, n_stages=2, column_groups=1),
    96: SumsBackwardTiles(128, 8, n_stages=2, column_groups=2),
    128: SumsBackwardTiles(128, 8, n_stages=2, column_groups=2),
    192: SumsBackwardTiles(64, 8, n_stages=2, column_groups=4),
    256: SumsBackwardTiles(64, 8, n_stages=2, column_groups=4),
}


# The tiles for GPUs with less shared memory; for d_head 64 two blocks must fit, and no tiles have
# room for that.
_SMALL = {d_head: tiles._replace(n_stages=1) for d_head, tiles in _HEURISTIC.items() if d_head > 64}
SMALL_D_HEADS = tuple(_SMALL)


def heuristic(dtype: DType, d_head: int) -> Sm80SumsBackwardKernelConfig:
    """Returns one configuration for each d_head. Raises ValueError for others."""
    return Sm80SumsBackwardKernelConfig(
        dtype, d_head, STATISTICS_ROWS, *tiles_of(_HEURISTIC, d_head)
    )


def small_heuristic(dtype: DType, d_head: int) -> Sm80SumsBackwardKernelConfig:
    """Returns one configuration for each d_head, for GPUs with less shared memory."""
    return Sm80SumsBackwardKernelConfig(dtype, d_head, STATISTICS_ROWS, *tiles_of(_SMALL, d_head))


def tuning_space(dtype: DType, d_head: int) -> list[Sm80SumsBackwardKernelConfig]:
    """Returns all combinations of supported values; the tuner drops illegal ones."""
    values = (SUPPORTED_VALUES[name] for name in SumsBackwardTiles._fields)
    return [
        Sm80SumsBackwardKernelConfig(dtype, d_head, STATISTICS_ROWS, *tiles)
        for tiles in product(*values)
    ]
