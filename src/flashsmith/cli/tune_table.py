"""The tables of `flashsmith tune`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flashsmith.cli.tables import note, print_json, print_table
from flashsmith.lab.bench.results import CountRow
from flashsmith.lab.commands.tune import Tuned
from flashsmith.lab.tuning.portfolio import TOLERANCE, Portfolio
from flashsmith.lab.tuning.ranking import RANKED_BY
from flashsmith.runtime.counters import explain_headings, table_of
from flashsmith.selection.entries import Entry


def print_tuned(tuned: Tuned, as_json: bool) -> None:
    entries = list(tuned.found.entries.values())
    for entry in entries:
        for kernel, reason in entry.excluded.items():
            note(f"excluded: {kernel} for {entry.workload}: {reason}")
    rows = [_row(entry) for entry in entries]
    if as_json:
        portfolios = [_portfolio_row(each) for each in tuned.portfolios]
        stamp = tuned.found.stamp
        print_json({"table": tuned.path, "stamp": stamp, "entries": rows, "portfolios": portfolios})
        return
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    for portfolio in tuned.portfolios:
        note(_portfolio_words(portfolio))
    note(f"the table is {tuned.path}")


def _row(entry: Entry[Any, Any]) -> dict[str, Any]:
    best, *others = entry.ranked
    shape = entry.workload.as_row()
    said_by_kernel = ("dtype", "d_head")
    return {
        "kernel": best.config.short_form(),
        **{name: value for name, value in shape.items() if name not in said_by_kernel},
        "ms": best.ms,
        "TFLOP/s": best.tflops,
        "ms back to back": best.ms_back_to_back,
        "next best": f"+{100 * (others[0].cost / best.cost - 1):.1f} %" if others else None,
        "heuristic": entry.heuristic_ratio and f"+{100 * (entry.heuristic_ratio - 1):.1f} %",
        "tried": entry.tried,
        "excluded": len(entry.excluded),
    }


def _portfolio_row(portfolio: Portfolio) -> dict[str, Any]:
    return {
        "d_head": portfolio.d_head,
        "mask": portfolio.variant,
        "kernels": [str(tiles) for tiles in portfolio.tiles],
        "beyond_tolerance": {
            key.words: round(loss, 4) for key, loss in portfolio.beyond_tolerance.items()
        },
    }


def _portfolio_words(portfolio: Portfolio) -> str:
    words = f"{len(portfolio.tiles)} kernels serve d {portfolio.d_head} {portfolio.variant}"
    beyond = [
        f"{key.words} {100 * loss:.1f} %" if math.isfinite(loss) else f"{key.words} unknown"
        for key, loss in portfolio.beyond_tolerance.items()
    ]
    if not beyond:
        return f"{words} within {100 * TOLERANCE:g} % of the best of each shape"
    return f"{words}; they lose more than {100 * TOLERANCE:g} % at {'; '.join(beyond)}"


def print_counts(rows: Sequence[CountRow], as_json: bool) -> None:
    if as_json:
        print_json(
            {"measured": "emulator counts, no times", "rows": [row.as_dict() for row in rows]}
        )
    else:
        headings, cells = table_of([row.counts for row in rows])
        names = [
            [row.kernel, row.workload.variant.name, row.workload.problem.seq_len_q, row.status]
            for row in rows
        ]
        lines = [[*name, *found] for name, found in zip(names, cells, strict=True)]
        print_table(["kernel", "mask", "seq_len", "", *headings], lines)
        note(f"counted: {explain_headings(headings)}")
    note(RANKED_BY)
