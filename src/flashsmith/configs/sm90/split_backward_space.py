"""The declared configurations of the sm90 family's split backward."""

from __future__ import annotations

from typing import NamedTuple

from flashsmith.configs.legality import with_max_stages
from flashsmith.configs.sm90.backward import B_R
from flashsmith.configs.sm90.hardware import WGMMA_M
from flashsmith.configs.sm90.split_backward import (
    MAX_CLUSTER,
    MAX_STAGES,
    MIN_STAGES,
    N_WARPGROUPS,
    Sm90SplitBackwardKernelConfig,
)
from flashsmith.dtype import DType


class SplitBackwardStages(NamedTuple):
    """The fields of a configuration that decide its shared memory."""

    K: int
    V: int
    Q: int
    dO: int


# Each d_head has as many stages as fit.
_HEURISTIC = {
    64: SplitBackwardStages(K=4, V=4, Q=4, dO=4),
    96: SplitBackwardStages(K=4, V=4, Q=4, dO=4),
    128: SplitBackwardStages(K=4, V=4, Q=4, dO=4),
    192: SplitBackwardStages(K=3, V=2, Q=3, dO=3),
    256: SplitBackwardStages(K=2, V=1, Q=2, dO=2),
}


def make_sm90_split_backward_config(
    dtype: DType, d_head: int, stages: SplitBackwardStages, cluster_size: int
) -> Sm90SplitBackwardKernelConfig:
    return Sm90SplitBackwardKernelConfig(
        dtype=dtype,
        d_head=d_head,
        B_r=B_R,
        B_c=WGMMA_M,
        n_warpgroups=N_WARPGROUPS,
        K_stages=stages.K,
        V_stages=stages.V,
        Q_stages=stages.Q,
        dO_stages=stages.dO,
        cluster_size=cluster_size,
    )


def heuristic(dtype: DType, d_head: int) -> Sm90SplitBackwardKernelConfig:
    """Returns one configuration for each d_head. Raises ValueError for others."""
    if d_head not in _HEURISTIC:
        supported = ", ".join(map(str, _HEURISTIC))
        raise ValueError(f"q has d_head {d_head}; the sm90 split backward supports {supported}")
    return make_sm90_split_backward_config(dtype, d_head, _HEURISTIC[d_head], cluster_size=2)


def tuning_space(dtype: DType, d_head: int) -> list[Sm90SplitBackwardKernelConfig]:
    """Returns as many stages of both kernels as fit, with single blocks and with clusters of
    two."""
    minimum = SplitBackwardStages(*MIN_STAGES.values())
    plain = make_sm90_split_backward_config(dtype, d_head, minimum, cluster_size=1)
    return [
        make_sm90_split_backward_config(
            dtype,
            d_head,
            SplitBackwardStages(dQ.K_stages, dQ.V_stages, dK_dV.Q_stages, dK_dV.dO_stages),
            cluster_size,
        )
        for dQ in with_max_stages(plain, ("K_stages", "V_stages"), MAX_STAGES)
        for dK_dV in with_max_stages(plain, ("Q_stages", "dO_stages"), MAX_STAGES)
        for cluster_size in range(1, MAX_CLUSTER + 1)
    ]
