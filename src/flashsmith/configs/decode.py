"""Makes a family of decode kernels, and maps workloads to entries of its tuned tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeVar

from flashsmith.configs.base import DecodeKernelConfig
from flashsmith.configs.family import Family
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.dtype import DType
from flashsmith.gpus import GpuArchitecture

D = TypeVar("D", bound=DecodeKernelConfig)

# The kinds of KV cache: whether keys and values are FP8, and whether each row has a scale.
KINDS_OF_CACHE = ((False, False), (True, False), (True, True))
# Work tiles an SM from which on they count as many: two for each of four blocks. Measured on an
# H200.
_MANY_TILES = 8


def decode_family(
    config: type[D],
    heuristic: Callable[[DecodeWorkload], D],
    heuristic_in_words: str,
    rows: Sequence[int],
    tuning_space: Callable[[DecodeWorkload, GpuArchitecture], Sequence[D]],
    *,
    min_rows: int = 0,
    by_boxes: bool = False,
) -> Family[DecodeWorkload, D]:
    """Returns a family with one configuration for each d_head, kind of KV cache and number of rows.

    Args:
        rows: Numbers of rows that stand for all others: one for each result of the heuristic.
        min_rows: The min number of rows; for fewer a plainer family's kernels are as fast.
        by_boxes: Whether it serves only caches that bulk copies can read in boxes.
        Others: See ``Family``.
    """

    def answers(dtype: DType, d_head: int) -> list[DecodeWorkload]:
        kinds = [kind for kind in KINDS_OF_CACHE if not (by_boxes and any(kind))]
        return [
            DecodeWorkload(dtype, d_head, n_rows, *kind, many_tiles)
            for kind, n_rows, many_tiles in product(kinds, rows, (False, True))
        ]

    def smaller(workload: DecodeWorkload) -> list[D]:
        """Lists configurations of smaller blocks, then configurations of fewer rows."""
        fewer = reversed([n for n in rows if n < heuristic(workload).B_r])
        asked = product((workload.rows, *fewer), (workload.many_tiles, True))
        return [heuristic(replace(workload, rows=n, many_tiles=many)) for n, many in asked]

    def is_for(workload: DecodeWorkload) -> bool:
        in_boxes = workload.in_boxes and not workload.fp8_cache
        return workload.rows >= min_rows and (in_boxes or not by_boxes)

    return Family(
        config, heuristic, heuristic_in_words, answers, tuning_space, smaller=smaller, is_for=is_for
    )


def rows_of_kernels(families: Sequence[Family[DecodeWorkload, Any]]) -> list[int]:
    """Lists the numbers of rows that have separate kernels; more rows take the largest's."""
    asked = (family.answers(DType.BF16, family.d_heads[0]) for family in families)
    return sorted({workload.rows for workloads in asked for workload in workloads})


def has_many_tiles(batch: int, heads_kv: int, num_sms: int | None) -> bool:
    """Returns whether a GPU's SMs have several work tiles each; False on a CPU (None), where time
    does not count."""
    return num_sms is not None and batch * heads_kv >= _MANY_TILES * num_sms


def as_tuned(
    workload: DecodeWorkload, families: Sequence[Family[DecodeWorkload, Any]]
) -> DecodeWorkload:
    """Rounds a workload to the one whose measurements serve it if ``families`` run: rows are
    rounded up to a kernel's, or to 16 with per-token scales; many_tiles stays for the fewest rows
    alone, and in_boxes only if a family depends on it."""
    of_kernels = rows_of_kernels(families)
    rows = next((maximum for maximum in of_kernels if workload.rows <= maximum), of_kernels[-1])
    if workload.per_token_scale:
        rows = of_kernels[0]
    many_tiles = workload.many_tiles and rows == of_kernels[0]
    rounded = replace(workload, rows=rows, many_tiles=many_tiles, in_boxes=True)
    elsewhere = replace(rounded, in_boxes=False)
    asked = any(family.is_for(rounded) and not family.is_for(elsewhere) for family in families)
    return rounded if asked and workload.in_boxes else elsewhere
