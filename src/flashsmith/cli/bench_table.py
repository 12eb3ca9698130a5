"""The tables of `flashsmith bench`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashsmith.cli.tables import note, print_json, print_table
from flashsmith.lab.bench.panels import OURS, panels, series
from flashsmith.lab.bench.results import OK, REGIMES, CountRow, Row, TimeRow
from flashsmith.lab.commands.bench import Measured
from flashsmith.runtime.counters import explain_headings, table_of


def report(measured: Measured, as_json: bool) -> None:
    if as_json:
        document = {
            "environment": measured.session.document,
            "rows": [row.as_dict() for row in measured.rows],
            "files": measured.files,
        }
        print_json(document)
    else:
        _print(measured.rows)
        note("\n".join(str(path) for path in measured.files))
    for row in measured.bad_rows:
        note(f"{row.status}: {row.kernel} at {row.workload}: {row.reason}")


def _print(rows: Sequence[Row]) -> None:
    times = [row for row in rows if isinstance(row, TimeRow)]
    for regime in REGIMES:
        _print_times([row for row in times if row.regime == regime])
    _print_counts([row for row in rows if isinstance(row, CountRow)])


def _print_times(rows: Sequence[TimeRow]) -> None:
    """Prints the times of one regime."""
    table: list[dict[str, Any]] = []
    for panel, by_length in panels(rows).items():
        for seq_len, found in sorted(by_length.items()):
            best = found.get(OURS)
            table.append(
                {"regime": rows[0].regime}
                | dict(zip(("dtype", "d_head", "mask"), panel, strict=True))
                | {"seq_len": seq_len}
                | {name: _rate(found.get(name)) for name in series(rows)}
                | {"of ceiling": best and best.share_of_ceiling}
                | {"of best peer": best and best.ratio_to_best_peer}
                | {"best kernel": best and best.kernel}
            )
    _print_lines(table)


def _print_counts(rows: Sequence[CountRow]) -> None:
    counted = [row for row in rows if row.status == OK]
    if not counted:
        return
    headings, cells = table_of([row.counts for row in counted])
    names = [
        [row.kernel, row.workload.variant.name, row.workload.problem.seq_len_q] for row in counted
    ]
    lines = [[*name, *found] for name, found in zip(names, cells, strict=True)]
    print_table(["kernel", "mask", "seq_len", *headings], lines)
    note(f"counted: {explain_headings(headings)}")


def _print_lines(table: Sequence[dict[str, Any]]) -> None:
    if table:
        print_table(list(table[0]), [list(line.values()) for line in table])


def _rate(row: TimeRow | None) -> float | None:
    return None if row is None else row.tflops
