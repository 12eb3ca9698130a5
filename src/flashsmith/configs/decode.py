"""Makes a family of decode kernels, and maps workloads to entries of its tuned tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeVar

from flashsmith.configs.base import DecodeKernelConfig
from flashsmith.configs.family import Family
from flashsmith.configs.workload import DecodeWorkload, WorkTiles
from flashsmith.dtype import DType
from flashsmith.gpus import GpuArchitecture

D = TypeVar("D", bound=DecodeKernelConfig)

# The kinds of KV cache: whether keys and values are FP8, and whether each row has a scale.
KINDS_OF_CACHE = ((False, False), (True, False), (True, True))
# Fewer work tiles for each SM than this are of a class, as measured on an H200
# (docs/log/decode.md); more are many.
_TILES_OF_AN_SM = {
    WorkTiles.FEW: 1 / 11,
    WorkTiles.SOME: 3 / 10,
    WorkTiles.FILLING: 1,
    WorkTiles.SEVERAL: 3,
}
_FEWEST_ROWS, _CLASSED_ROWS = 16, 32  # with more rows one kernel serves any number of work tiles


def _no_rows(workload: DecodeWorkload) -> int:
    return 0


def decode_family(
    config: type[D],
    heuristic: Callable[[DecodeWorkload], D],
    heuristic_in_words: str,
    rows: Sequence[int],
    tuning_space: Callable[[DecodeWorkload, GpuArchitecture], Sequence[D]],
    *,
    min_rows: Callable[[DecodeWorkload], int] = _no_rows,
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
            DecodeWorkload(dtype, d_head, n_rows, *kind, tiles)
            for kind, n_rows, tiles in product(kinds, rows, WorkTiles)
        ]

    def smaller(workload: DecodeWorkload) -> list[D]:
        """Lists configurations of smaller blocks, then configurations of fewer rows."""
        fewer = reversed([n for n in rows if n < heuristic(workload).B_r])
        numbers = (workload.tiles, WorkTiles.ANY, WorkTiles.MANY)
        asked = product((workload.rows, *fewer), numbers)
        return [heuristic(replace(workload, rows=n, tiles=tiles)) for n, tiles in asked]

    def is_for(workload: DecodeWorkload) -> bool:
        in_boxes = workload.in_boxes and not workload.fp8_cache
        return workload.rows >= min_rows(workload) and (in_boxes or not by_boxes)

    return Family(
        config, heuristic, heuristic_in_words, answers, tuning_space, smaller=smaller, is_for=is_for
    )


def rows_of_kernels(families: Sequence[Family[DecodeWorkload, Any]]) -> list[int]:
    """Lists the numbers of rows that have separate kernels; more rows take the largest's."""
    asked = (family.answers(DType.BF16, family.d_heads[0]) for family in families)
    return sorted({workload.rows for workloads in asked for workload in workloads})


def work_tiles(batch: int, heads_kv: int, num_sms: int | None) -> WorkTiles:
    """Returns how many work tiles a GPU has; any number on a CPU (None), where time does not
    count."""
    if num_sms is None:
        return WorkTiles.ANY
    of_an_sm = batch * heads_kv / num_sms
    classes = (each for each, limit in _TILES_OF_AN_SM.items() if of_an_sm < limit)
    return next(classes, WorkTiles.MANY)


def as_tuned(
    workload: DecodeWorkload, families: Sequence[Family[DecodeWorkload, Any]]
) -> DecodeWorkload:
    """Rounds a workload to the one whose measurements serve it if ``families`` run: rows are
    rounded up to a kernel's, or to 16 with per-token scales; the number of work tiles stays where
    there are kernels for it, and in_boxes only if a family depends on it."""
    of_kernels = rows_of_kernels(families)
    rows = next((maximum for maximum in of_kernels if workload.rows <= maximum), of_kernels[-1])
    if workload.per_token_scale:
        rows = of_kernels[0]
    rounded = replace(workload, rows=rows, tiles=_told_apart(workload, rows), in_boxes=True)
    elsewhere = replace(rounded, in_boxes=False)
    asked = any(family.is_for(rounded) and not family.is_for(elsewhere) for family in families)
    return rounded if asked and workload.in_boxes else elsewhere


def _told_apart(workload: DecodeWorkload, rows: int) -> WorkTiles:
    """Returns the number of work tiles as far as kernels depend on it: an FP8 cache has smaller
    blocks for many of 16 rows alone."""
    tiles = workload.tiles
    if workload.fp8_cache:
        return tiles if tiles is WorkTiles.MANY and rows == _FEWEST_ROWS else WorkTiles.ANY
    return tiles if rows <= _CLASSED_ROWS else WorkTiles.ANY
