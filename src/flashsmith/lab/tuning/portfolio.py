"""Picks the few kernels that serve all problems of a kind almost as well as the best of each.

Every kernel that a table may choose has to be built, and its first call waits for that. So a table
may choose at most eight kernels for each d_head and variant: the set that loses least against the
fastest kernel of each entry, beyond a tolerance. A few more serve grids that were not measured
(``unmeasured``). Both dtypes share the set, as tiles. On the H200,
three kernels lose up to 2.5% somewhere on full grids; six lose at most 1% everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from flashsmith.configs import DType, KernelConfig, sort_key
from flashsmith.configs.family import C, W
from flashsmith.configs.workload import TuningKey
from flashsmith.gpus import count_sms
from flashsmith.lab.tuning.unmeasured import Grids
from flashsmith.selection.entries import Entry, Measured
from flashsmith.selection.tables import Table

MAX_KERNELS = 8
_ALL_SETS_UP_TO = 3
_MAX_CANDIDATES = 60  # for these exhaustive sets
TOLERANCE = 0.01  # smaller losses are ignored

Tiles = KernelConfig  # always of FP16, so that configurations of both dtypes compare equal
Losses = tuple[float, ...]  # one for each entry; infinite if none of the kernels was measured


@dataclass(frozen=True)
class Portfolio:
    """The kernels of one d_head and variant that a table may choose.

    Attributes:
        losses: The relative slowdown of the best of these kernels against the best of each entry;
            infinite if none of them was measured to the end.
    """

    d_head: int
    variant: str
    tiles: tuple[Tiles, ...]
    losses: Mapping[TuningKey, float]

    @property
    def worst_loss(self) -> float:
        return max(self.losses.values())

    @property
    def beyond_tolerance(self) -> dict[TuningKey, float]:
        return {key: loss for key, loss in self.losses.items() if loss > TOLERANCE}


def with_portfolios(table: Table[W, C]) -> Table[W, C]:
    """Returns the table, restricted to choices from portfolios; it keeps all measurements."""
    restricted: dict[TuningKey, Entry[W, C]] = {}
    for entries in _kinds(table).values():
        grids = Grids(entries, count_sms(table.stamp.get("gpu", "")))
        chosen = grids.extended(pick(_losses(entries)))
        for key, entry in entries.items():
            rows = (replace(row, in_portfolio=_tiles(row) in chosen) for row in entry.ranked)
            restricted[key] = replace(entry, ranked=tuple(rows))
    return Table(table.operation, table.stamp, restricted)


def portfolios_of(table: Table[Any, Any]) -> list[Portfolio]:
    """Returns the portfolios that a table chooses from, with their losses."""
    portfolios = []
    for (d_head, variant), entries in _kinds(table).items():
        rows = (row for entry in entries.values() for row in entry.choices)
        tiles = tuple(sorted({_tiles(row) for row in rows}, key=sort_key))
        losses = {key: _loss_of_choice(entry) for key, entry in entries.items()}
        portfolios.append(Portfolio(d_head, variant, tiles, losses))
    return portfolios


def pick(losses: Mapping[Tiles, Losses]) -> tuple[Tiles, ...]:
    """Returns the smallest set of kernels, up to ``MAX_KERNELS``, that loses no more than
    ``TOLERANCE`` on any entry; if there is none, the set that loses least beyond it.

    Sets of up to three are searched exhaustively, among the 60 most promising kernels. Then kernels
    are added one at a time, and after each, every member is exchanged if another one does better.
    """

    def badness(chosen: Iterable[Tiles]) -> tuple[int, float, float]:
        return _badness(_best_of(losses[each] for each in chosen))

    def is_enough(chosen: Iterable[Tiles]) -> bool:
        return badness(chosen)[:2] == (0, 0.0)

    def with_best(rest: Sequence[Tiles]) -> list[Tiles]:
        others = [each for each in losses if each not in rest]
        return [*rest, min(others, key=lambda each: badness([*rest, each]))]

    promising = sorted(losses, key=lambda tiles: badness([tiles]))[:_MAX_CANDIDATES]
    chosen: list[Tiles] = []
    for size in range(1, min(_ALL_SETS_UP_TO, MAX_KERNELS, len(promising)) + 1):
        chosen = list(min(combinations(promising, size), key=badness))
        if is_enough(chosen):
            return tuple(chosen)
    while len(chosen) < min(MAX_KERNELS, len(losses)) and not is_enough(chosen):
        chosen = with_best(chosen)
        for _ in range(len(chosen)):
            chosen = with_best(chosen[1:])
    return tuple(sorted(chosen, key=sort_key))


def _kinds(table: Table[W, C]) -> dict[tuple[int, str], dict[TuningKey, Entry[W, C]]]:
    """Returns the entries by d_head and variant."""
    kinds: dict[tuple[int, str], dict[TuningKey, Entry[W, C]]] = {}
    for key in sorted(table.entries, key=lambda key: (key.kind, key)):
        kinds.setdefault(key.kind, {})[key] = table.entries[key]
    return kinds


def _losses(entries: Mapping[TuningKey, Entry[Any, Any]]) -> dict[Tiles, Losses]:
    """Returns the losses of all measured tiles, in the order of configurations."""
    # If two rows of an entry have the same tiles, the faster one counts: it is written last.
    of_entries = [
        {_tiles(row): entry.loss(row) for row in reversed(entry.ranked)}
        for entry in entries.values()
    ]
    known = sorted({tiles for losses in of_entries for tiles in losses}, key=sort_key)
    return {tiles: tuple(each.get(tiles, math.inf) for each in of_entries) for tiles in known}


def _loss_of_choice(entry: Entry[Any, Any]) -> float:
    return entry.loss(entry.choices[0]) if entry.choices else math.inf


def _tiles(row: Measured[Any]) -> Tiles:
    config: Tiles = row.config.for_dtype(DType.FP16)
    return config


def _best_of(losses: Iterable[Losses]) -> Losses:
    return tuple(map(min, zip(*losses, strict=True)))


def _badness(losses: Losses) -> tuple[int, float, float]:
    """Returns the number of entries without any of the kernels, the loss beyond the tolerance, and
    the total loss."""
    finite = [loss for loss in losses if loss < math.inf]
    beyond = sum(max(0.0, loss - TOLERANCE) for loss in finite)
    return len(losses) - len(finite), beyond, sum(finite)
