"""Carries the times of a table's entry over to other grids of its bucket.

An entry was measured at one grid, and serves many. Which of its kernels is the fastest depends on
how a grid divides into tiles, and that follows from sizes: each row's time is scaled by the
schedule cost of its configuration at the grid that is wanted, over that at the measured one. The
rows' own times stand for all that the schedule does not know.
"""

from __future__ import annotations

from collections.abc import Collection

from flashsmith.configs.family import C, W
from flashsmith.configs.registry import family_of
from flashsmith.selection.entries import Entry, Measured

_LAUNCH_MS = 0.008  # a launch, and a block's first loads and last stores, at any size
CLEARLY = 0.96  # a predicted difference counts from 4% on


def carried_over_ms(
    row: Measured[C], measured_at: W, workload: W, num_sms: int, config: C | None = None
) -> float | None:
    """Returns the time of a kernel at another workload, predicted from a row's; None: the family
    does not know how its time depends on the workload.

    config: The kernel, if it has the row's tiles in another order or of packed heads; None: the
        row's own.
    """
    schedule_cost = family_of(row.config).schedule_cost
    if schedule_cost is None:
        return None
    there = schedule_cost(row.config, measured_at, num_sms)
    here = schedule_cost(config or row.config, workload, num_sms)
    if there is None or here is None:
        return None
    launch = min(_LAUNCH_MS, row.cost / 2)
    return launch + (row.cost - launch) * here / there


def can_be_carried_over(entry: Entry[W, C]) -> bool:
    """Returns whether the times of an entry's choices say something of other grids."""
    return all(family_of(row.config).schedule_cost is not None for row in entry.choices)


def candidates(entry: Entry[W, C], portfolio: Collection[C]) -> list[tuple[C, Measured[C]]]:
    """Returns the kernels that may serve an entry's bucket, each with the row that has its time:
    the entry's choices, and kernels of the portfolio whose tiles it has in another order.

    An order that is of no use where a bucket was measured may be the best at its other grids.
    """
    found = [(row.config, row) for row in entry.choices]
    known = {config for config, _ in found}
    by_tiles = {row.config.in_no_order(): row for row in reversed(entry.ranked)}
    for config in portfolio:
        row = by_tiles.get(config.in_no_order())
        if config not in known and row is not None:
            found.append((config, row))
    return found


def best_first(
    entry: Entry[W, C], portfolio: Collection[C], workload: W, num_sms: int
) -> tuple[list[tuple[C, Measured[C]]], bool]:
    """Returns the candidates in the order in which they should serve a workload, and whether that
    is by predicted times: so if the fastest by these is clearly faster than the fastest that was
    measured; else they are the entry's choices, for a window in the order that suits windows."""
    measured = [(row.config, row) for row in entry.choices]
    if not can_be_carried_over(entry):
        return measured, False
    if workload.variant.window:
        return _for_windows(measured), False
    times: dict[C, float] = {}
    rows = candidates(entry, portfolio)
    rows += [
        (other, row)
        for config, row in rows
        for other in family_of(config).other_versions(config, workload)
    ]
    for config, row in rows:
        ms = carried_over_ms(row, entry.workload, workload, num_sms, config)
        if ms is None:
            return measured, False
        times[config] = ms
    if not rows or min(times.values()) >= CLEARLY * times[rows[0][0]]:
        return measured, False
    return sorted(rows, key=lambda each: times[each[0]]), True


def _for_windows(measured: list[tuple[C, Measured[C]]]) -> list[tuple[C, Measured[C]]]:
    """Returns measured kernels, best first, as they should serve a window. Those that are not
    clearly slower than the first come in the order of their family's ``window_rank``."""
    if not measured:
        return []
    rank = family_of(measured[0][0]).window_rank
    if rank is None:
        return measured
    near = [each for each in measured if CLEARLY * each[1].cost <= measured[0][1].cost]
    return sorted(near, key=lambda each: rank(each[0])) + measured[len(near) :]
