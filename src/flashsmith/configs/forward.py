"""Makes a family of forward kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from flashsmith.configs.base import ForwardKernelConfig
from flashsmith.configs.cost_model import grid_cost
from flashsmith.configs.family import DeclaredSets, Family, as_chosen, no_others
from flashsmith.configs.workload import Workload
from flashsmith.dtype import DType
from flashsmith.gpus import GpuArchitecture

F = TypeVar("F", bound=ForwardKernelConfig)


def forward_family(
    config: type[F],
    heuristic: Callable[[DType, int, int], F],
    heuristic_in_words: str,
    heuristic_lengths: Sequence[int],
    small_tiles: Callable[[DType, int], Sequence[F]],
    d_heads: tuple[int, ...],
    sets: DeclaredSets[F],
    *,
    suited: Callable[[F, Workload], F] = as_chosen,
    other_versions: Callable[[F, Workload], Sequence[F]] = no_others,
    schedule_cost: Callable[[F, Workload, int], float | None] | None = None,
    window_rank: Callable[[F], tuple[int, ...]] | None = None,
    is_rival: bool = True,
) -> Family[Workload, F]:
    """Returns a family whose heuristic depends on dtype, d_head and the number of keys a query
    sees.

    Args:
        heuristic_lengths: Numbers of keys that stand for all others.
        small_tiles: The alternatives if the heuristic's tiles are too few.
        Others: See ``Family``.
    """

    def answers(dtype: DType, d_head: int) -> list[Workload]:
        return [Workload.square(dtype, d_head, n_keys) for n_keys in heuristic_lengths]

    def tuning_space(workload: Workload, _: GpuArchitecture) -> list[F]:
        space = sets.tuning_space(d_heads=(workload.d_head,))
        return [cfg for cfg in space if cfg.dtype == workload.dtype]

    return Family(
        config=config,
        heuristic=lambda workload: heuristic(
            workload.dtype, workload.d_head, workload.keys_per_query
        ),
        heuristic_in_words=heuristic_in_words,
        answers=answers,
        tuning_space=tuning_space,
        d_heads=d_heads,
        smaller=lambda workload: small_tiles(workload.dtype, workload.d_head),
        cost=lambda cfg, workload, n: grid_cost(cfg, workload.problem, n),
        suited=suited,
        other_versions=other_versions,
        schedule_cost=schedule_cost,
        window_rank=window_rank,
        is_rival=is_rival,
        declared_sets=sets,
    )
