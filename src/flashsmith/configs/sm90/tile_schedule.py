"""The time until the last tile of a forward ends, by the order in which tiles start.

A table has times of a few grids. Other grids of its buckets divide into tiles in another way: 24
heads have their long causal tiles in two groups where 16 have them in one, and 900 queries are five
tiles of 192 rows or four of 256. The simulation below starts a kernel's tiles in its own order, as
blocks become free, and so carries a measured time over to another grid. docs/tuning.md has how well
it predicts.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterator
from dataclasses import replace

from flashsmith.configs.cost_model import resident_blocks, slowdown
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.configs.workload import Workload
from flashsmith.problem import sizes_like

_OPENING_KEYS = 128  # a tile's beginning and end take as long as this number of keys
# The order matters in the last tiles of each block, so more tiles than this count as evenly shared.
_MAX_TILES_OF_A_BLOCK = 24
# Packed heads come into question up to these numbers: larger groups leave few queries a tile, and
# in longer sequences few of the tiles are cut.
_MAX_HEADS, _MAX_QUERIES = 16, 8192
_CLEARLY = 0.96  # less work by packed heads counts from 4% on
_SAMPLES = 8  # lengths of a size class


@functools.lru_cache(maxsize=1024)
def schedule_cost(
    config: Sm90ForwardKernelConfig, workload: Workload, num_sms: int
) -> float | None:
    """Returns the time of all tiles, in units of a row and a key with tensor cores always busy.

    Sequences of unlike lengths count as if all were as long as the longest. What that says of
    kernels is good enough where heads may be packed, which matters more.

    None: The numbers of keys that tiles visit are not known, because a window, the lengths of
    sequences or the caller's functions decide them; or there are no tiles.
    """
    variant, problem = workload.variant, workload.problem
    if variant.window or variant.paged or variant.score:
        return None
    if variant.varlen and not _may_pack(config, workload):
        return None
    n_heads = problem.batch * config.heads_of_tiles(problem)
    tiles = _tiles_of_a_head(config, workload)
    n_tiles = len(tiles) * n_heads
    if n_tiles == 0 or problem.seq_len_k == 0:
        return None
    resident = min(resident_blocks(config), -(-n_tiles // num_sms))
    n_blocks, factor = num_sms * resident, slowdown(config, resident)
    if n_tiles > _MAX_TILES_OF_A_BLOCK * n_blocks:
        return factor * (sum(tiles) * n_heads / n_blocks + min(tiles) / 2)
    if not variant.causal:  # all tiles take as long
        return factor * (-(-n_tiles // n_blocks) * tiles[0])
    free_at = [0.0] * n_blocks
    for time in _in_order(tiles, n_heads, config.heads_per_group):
        heapq.heapreplace(free_at, free_at[0] + time)
    return factor * max(free_at)


def window_rank(config: Sm90ForwardKernelConfig) -> tuple[int, ...]:
    """Returns a configuration's rank under a window, least first: few keys at a time, of which few
    are outside of the window, then many stages, as a tile ends after a few blocks and the loads of
    the next one have to be on their way."""
    return config.B_c, -config.n_stages


def packed_version(
    config: Sm90ForwardKernelConfig, workload: Workload
) -> tuple[Sm90ForwardKernelConfig, ...]:
    """Returns the configuration with packed heads, if these come into question for a workload.

    A packed tile has as many rows, of fewer queries: less of it lies beyond the sequence's end and
    beyond the diagonal, most of all with tiles of 192 rows and few keys at a time. But rows that
    make no whole query are lost.
    """
    return (replace(config, packed_heads=True),) if _may_pack(config, workload) else ()


def packed_if_it_pays(
    config: Sm90ForwardKernelConfig, workload: Workload
) -> Sm90ForwardKernelConfig:
    """Returns the configuration with packed heads if it was chosen with them, or if its tiles then
    are clearly less work. Lengths of one size class share a choice, so their mean decides."""
    whole, packed = (replace(config, packed_heads=packs) for packs in (False, True))
    if not _may_pack(config, workload):
        return whole
    return packed if config.packed_heads or _is_less_work(packed, whole, workload) else whole


def _may_pack(config: Sm90ForwardKernelConfig, workload: Workload) -> bool:
    problem = workload.problem
    few = 1 < problem.group_size <= _MAX_HEADS and 0 < problem.seq_len_q <= _MAX_QUERIES
    return few and config.may_pack(workload.variant)


def _is_less_work(
    packed: Sm90ForwardKernelConfig, whole: Sm90ForwardKernelConfig, workload: Workload
) -> bool:
    problem, alike = workload.problem, list(_of_its_class(workload))

    def work(each: Sm90ForwardKernelConfig) -> float:
        return each.heads_of_tiles(problem) * sum(sum(_tiles_of_a_head(each, w)) for w in alike)

    return work(packed) <= _CLEARLY * work(whole)


def _of_its_class(workload: Workload) -> Iterator[Workload]:
    """Yields workloads of the size class of the queries, with the same keys before them."""
    problem = workload.representative.problem
    sizes, ahead = sizes_like(problem.seq_len_q), problem.seq_len_k - problem.seq_len_q
    for n in sizes[:: -(-len(sizes) // _SAMPLES)]:
        yield replace(workload, problem=replace(problem, seq_len_q=n, seq_len_k=max(n + ahead, 0)))


def _tiles_of_a_head(config: Sm90ForwardKernelConfig, workload: Workload) -> list[float]:
    """Returns the times of a head's tiles, first rows first, as if each had an SM of its own."""
    problem = workload.problem
    ahead = problem.seq_len_k - problem.seq_len_q  # keys before the first query's diagonal
    times = []
    n_queries = config.queries_of_tile(problem)
    for first in range(0, problem.seq_len_q, n_queries):
        n_keys = problem.seq_len_k
        if workload.variant.causal:
            n_keys = max(min(first + n_queries, problem.seq_len_q) + ahead, 0)
        blocks = -(-n_keys // config.B_c)
        times.append(float(config.B_r * (blocks * config.B_c + _OPENING_KEYS)))
    return times


def _in_order(tiles: list[float], n_heads: int, heads_per_group: int) -> Iterator[float]:
    """Yields the tiles of all heads as they start: head by head, or the last tile of each head of a
    group before the last but one of each (tile_order.cuh)."""
    if heads_per_group == 0:
        for _ in range(n_heads):
            yield from tiles
        return
    for first in range(0, n_heads, heads_per_group):
        heads = min(heads_per_group, n_heads - first)
        for time in reversed(tiles):
            for _ in range(heads):
                yield time
