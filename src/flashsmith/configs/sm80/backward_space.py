"""The declared configurations of the sm80 backward."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from flashsmith.configs.legality import tiles_of
from flashsmith.configs.sm80.backward import SUPPORTED_VALUES, FlashBackwardKernelConfig
from flashsmith.dtype import DType


class BackwardTiles(NamedTuple):
    """All fields of a configuration but the element type and d_head."""

    B_r: int
    B_c: int
    n_warps: int
    n_stages: int
    split_dK_dV: bool


# The tiles were measured on the H200, docs/log/backward.md. Up to d_head 128 a warp keeps 32 rows,
# which halves its reads of the visited tiles; at 128 that leaves registers for dK or dV, not both.
_HEURISTIC = {
    64: BackwardTiles(128, 64, 4, n_stages=1, split_dK_dV=False),
    96: BackwardTiles(64, 64, 4, n_stages=1, split_dK_dV=False),
    128: BackwardTiles(128, 32, 4, n_stages=2, split_dK_dV=True),
    192: BackwardTiles(64, 64, 4, n_stages=1, split_dK_dV=True),
    256: BackwardTiles(64, 32, 4, n_stages=1, split_dK_dV=True),
}


def heuristic(dtype: DType, d_head: int) -> FlashBackwardKernelConfig:
    """Returns one configuration for each d_head. Raises ValueError for others."""
    return FlashBackwardKernelConfig(dtype, d_head, *tiles_of(_HEURISTIC, d_head))


def tuning_space(dtype: DType, d_head: int) -> list[FlashBackwardKernelConfig]:
    """Returns all combinations of supported values; the tuner drops illegal ones."""
    names = ("B_r", "B_c", "n_warps", "n_stages")
    every = product(*(SUPPORTED_VALUES[name] for name in names))
    return [
        FlashBackwardKernelConfig(dtype, d_head, B_r, B_c, n_warps, n_stages, split)
        for (B_r, B_c, n_warps, n_stages), split in product(every, (False, True))
    ]
