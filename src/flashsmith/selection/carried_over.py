"""Carries the times of a table's entry over to other grids of its bucket.

An entry was measured at one grid, and serves many. Which of its kernels is the fastest depends on
how a grid divides into tiles, and that follows from sizes: each row's time is scaled by the
schedule cost of its configuration at the grid that is wanted, over that at the measured one. The
rows' own times stand for all that the schedule does not know.
"""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.configs.family import C, W
from flashsmith.configs.registry import family_of
from flashsmith.selection.entries import Entry, Measured

_LAUNCH_MS = 0.008  # a launch, and a block's first loads and last stores, at any size
CLEARLY = 0.96  # a predicted difference counts from 4% on


def carried_over_ms(row: Measured[C], measured_at: W, workload: W, num_sms: int) -> float | None:
    """Returns the time of a row's kernel at another workload, predicted from its own; None: the
    family does not know how its time depends on the workload."""
    schedule_cost = family_of(row.config).schedule_cost
    if schedule_cost is None:
        return None
    there = schedule_cost(row.config, measured_at, num_sms)
    here = schedule_cost(row.config, workload, num_sms)
    if there is None or here is None:
        return None
    launch = min(_LAUNCH_MS, row.cost / 2)
    return launch + (row.cost - launch) * here / there


def best_first(entry: Entry[W, C], workload: W, num_sms: int) -> tuple[Sequence[Measured[C]], bool]:
    """Returns the entry's choices in the order in which they should serve a workload, and whether
    that is by predicted times: so if the fastest by these is clearly faster than the fastest that
    was measured."""
    choices = entry.choices
    found = [carried_over_ms(row, entry.workload, workload, num_sms) for row in choices]
    times = [ms for ms in found if ms is not None]
    if len(times) < max(len(choices), 2) or min(times) >= CLEARLY * times[0]:
        return choices, False
    return [choices[i] for i in sorted(range(len(times)), key=times.__getitem__)], True
