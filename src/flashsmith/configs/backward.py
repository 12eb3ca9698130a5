"""Makes a family of backward kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeVar

from flashsmith.configs.base import BackwardKernelConfig, Capability
from flashsmith.configs.family import Family
from flashsmith.configs.variant import VARIANTS
from flashsmith.configs.workload import D_HEADS, BackwardWorkload
from flashsmith.dtype import DType
from flashsmith.gpus import GpuArchitecture
from flashsmith.problem import Problem

B = TypeVar("B", bound=BackwardKernelConfig)

# A heuristic chooses for all sizes what it chooses for these: short and long sequences, few and
# many tiles, and heads that share keys or do not.
_LENGTHS, _BATCHES, _GROUPS = (256, 700, 1000, 8192), (1, 4096), (1, 2)


def problems_of_all_sizes(dtype: DType, d_head: int) -> list[Problem]:
    """Returns problems whose sizes stand for all others in a heuristic's choice."""
    return [
        Problem(dtype, d_head, batch, group, 1, length, length)
        for length, batch, group in product(_LENGTHS, _BATCHES, _GROUPS)
    ]


def backward_family(
    config: type[B],
    by_d_head: Callable[[DType, int], B],
    heuristic_in_words: str,
    tuning_space: Callable[[DType, int], Sequence[B]],
    *,
    d_heads: tuple[int, ...] = D_HEADS,
    minimum: Capability = (8, 0),
) -> Family[BackwardWorkload, B]:
    """Returns a family with one configuration for each d_head, which adapts to a workload's mask
    and lengths.

    Args:
        by_d_head: The configuration of a dtype and d_head. Raises ValueError that names what the
            family does not support.
        tuning_space: The configurations that the tuner tries for a dtype and d_head.
        Others: See ``Family``.
    """

    def fitted(config: B, workload: BackwardWorkload) -> B:
        return config.made_deterministic() if workload.deterministic else config

    def heuristic(workload: BackwardWorkload) -> B:
        return fitted(by_d_head(workload.dtype, workload.d_head), workload).suited_to(workload)

    def answers(dtype: DType, d_head: int) -> list[BackwardWorkload]:
        return [
            BackwardWorkload(problem, variant, same)
            for problem in problems_of_all_sizes(dtype, d_head)
            for variant, same in product(VARIANTS, (False, True))
        ]

    def space(workload: BackwardWorkload, _: GpuArchitecture) -> list[B]:
        configs = tuning_space(workload.dtype, workload.d_head)
        return [fitted(config, workload) for config in configs]

    return Family(
        config,
        heuristic,
        heuristic_in_words,
        answers,
        space,
        d_heads=d_heads,
        minimum=minimum,
    )
