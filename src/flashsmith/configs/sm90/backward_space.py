"""The declared configurations of the sm90 backward."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import NamedTuple

from flashsmith.configs.legality import with_max_stages
from flashsmith.configs.sm90.backward import (
    B_R,
    MAX_STAGES,
    MIN_SHARING_Q_STAGES,
    SHARING_DO_STAGES,
    SHARING_WARPGROUPS,
    TURNS,
    WIDE_D_HEAD,
    Sm90BackwardKernelConfig,
    score_keys,
)
from flashsmith.configs.sm90.hardware import WGMMA_K
from flashsmith.dtype import DType


class BackwardTiles(NamedTuple):
    """All fields of a configuration but dtype and d_head."""

    n_warpgroups: int
    Q_stages: int
    dO_stages: int
    V_steps_in_registers: int
    turns: int
    persistent: bool = False


# These tiles were the fastest for each d_head in a skeleton of the main loop
# (docs/log/backward.md).
_HEURISTIC = {
    64: BackwardTiles(3, 3, 3, V_steps_in_registers=0, turns=1),
    96: BackwardTiles(2, 3, 2, V_steps_in_registers=6, turns=0),
    128: BackwardTiles(2, 3, 2, V_steps_in_registers=4, turns=2),
    WIDE_D_HEAD: BackwardTiles(
        SHARING_WARPGROUPS,
        MIN_SHARING_Q_STAGES,
        SHARING_DO_STAGES,
        V_steps_in_registers=0,
        turns=0,
    ),
}


def make_sm90_backward_config(
    dtype: DType, d_head: int, tiles: BackwardTiles
) -> Sm90BackwardKernelConfig:
    return Sm90BackwardKernelConfig(
        dtype=dtype,
        d_head=d_head,
        B_r=B_R,
        B_c=score_keys(d_head) * tiles.n_warpgroups,
        n_warpgroups=tiles.n_warpgroups,
        Q_stages=tiles.Q_stages,
        dO_stages=tiles.dO_stages,
        V_steps_in_registers=tiles.V_steps_in_registers,
        turns=tiles.turns,
        persistent=tiles.persistent,
    )


def heuristic(dtype: DType, d_head: int) -> Sm90BackwardKernelConfig:
    """Returns one configuration for each d_head. Raises ValueError for others."""
    if d_head not in _HEURISTIC:
        supported = ", ".join(map(str, _HEURISTIC))
        raise ValueError(f"q has d_head {d_head}; the sm90 backward supports {supported}")
    return make_sm90_backward_config(dtype, d_head, _HEURISTIC[d_head])


def tuning_space(dtype: DType, d_head: int) -> list[Sm90BackwardKernelConfig]:
    """Returns two and three warpgroups; none, half and all of the steps of V in registers; every
    value of turns; and for each as many stages as fit. Blocks are persistent, with and without
    ordered sums, or not persistent. Warpgroups that share keys have room for one kind of tiles."""
    if d_head == WIDE_D_HEAD:
        plain = heuristic(dtype, d_head)
        persistent = replace(plain, persistent=True)
        return [plain, persistent, persistent.made_deterministic()]
    found = []
    steps = d_head // WGMMA_K
    for n_warpgroups, V_steps in product((2, 3), sorted({0, steps // 2, steps, 4, 6})):
        plain = make_sm90_backward_config(
            dtype, d_head, BackwardTiles(n_warpgroups, 1, 1, V_steps, turns=0)
        )
        for tiles in with_max_stages(plain, ("Q_stages", "dO_stages"), MAX_STAGES):
            for turns in range(TURNS + 1):
                taking_turns = replace(tiles, turns=turns)
                persistent = replace(taking_turns, persistent=True)
                found += [taking_turns, persistent, persistent.made_deterministic()]
    return found
