"""What `flashsmith bench` writes and prints of the rows that it measured."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

from flashsmith.bench import summary
from flashsmith.bench.panels import OURS, panels, series
from flashsmith.bench.results import (
    KERNEL,
    OK,
    REGIMES,
    CountRow,
    Row,
    TimeRow,
    with_regime,
)
from flashsmith.bench.session import Session
from flashsmith.cli.tables import note, print_json, print_table
from flashsmith.runtime.counters import explain_headings, table_of

COUNTS_CSV = "counts.csv"
_BAD_KERNEL = 1  # exit code


def times_csv(regime: str) -> str:
    return f"{with_regime('forward', regime)}.csv"


def find_plots() -> ModuleType | None:
    if importlib.util.find_spec("matplotlib") is None:
        note(
            "no plots: matplotlib is not installed (`pip install 'flashsmith[bench]'`); the same "
            "command draws them afterwards"
        )
        return None
    from flashsmith.bench import plots

    return plots


def remove_reports(out: Path) -> None:
    """Removes the Markdown and the plots of all regimes: their rows are forgotten."""
    for stem in ("forward", "tflops", "roofline"):
        for name in (with_regime(stem, regime) for regime in REGIMES):
            for suffix in (".md", ".png", ".svg"):
                (out / f"{name}{suffix}").unlink(missing_ok=True)


def write_times(
    rows: Sequence[TimeRow], session: Session, out: Path, plots: ModuleType | None
) -> list[Path]:
    """Markdown and plots of one regime; returns all its files."""
    if not rows:
        return []
    table = out / times_csv(rows[0].regime)
    markdown = table.with_suffix(".md")
    markdown.write_text(summary.times_markdown(rows, session.document))
    gpu = str(session.document["gpu"])
    files = plots.plot_times(rows, session.ceilings, gpu, out) if plots else []
    return [table, markdown, *files]


def write_counts(
    rows: Sequence[CountRow], session: Session, out: Path, plots: ModuleType | None
) -> list[Path]:
    """As ``write_times``, of what the emulator counted."""
    table = out / COUNTS_CSV
    markdown = table.with_suffix(".md")
    markdown.write_text(summary.counts_markdown(rows, session.document))
    files = plots.plot_counts(rows, out) if plots else []
    return [table, markdown, session.path, *files]


def report(session: Session, rows: Sequence[Row], files: Sequence[Path], as_json: bool) -> None:
    if as_json:
        document = {
            "environment": session.document,
            "rows": [asdict(row) for row in rows],
            "files": files,
        }
        print_json(document)
    else:
        _print(rows)
        note("\n".join(str(path) for path in files))
    bad = [row for row in rows if row.status != OK]
    for row in bad:
        note(f"{row.status}: {row.kernel} at {row.problem}: {row.reason}")
    if any(row.kind == KERNEL for row in bad):
        raise typer.Exit(_BAD_KERNEL)


def _print(rows: Sequence[Row]) -> None:
    times = [row for row in rows if isinstance(row, TimeRow)]
    for regime in REGIMES:
        _print_times([row for row in times if row.regime == regime])
    _print_counts([row for row in rows if isinstance(row, CountRow)])


def _print_times(rows: Sequence[TimeRow]) -> None:
    """Of one regime."""
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
    names = [[row.kernel, row.mask, row.seq_len] for row in counted]
    lines = [[*name, *found] for name, found in zip(names, cells, strict=True)]
    print_table(["kernel", "mask", "seq_len", *headings], lines)
    note(f"counted: {explain_headings(headings)}")


def _print_lines(table: Sequence[dict[str, Any]]) -> None:
    if table:
        print_table(list(table[0]), [list(line.values()) for line in table])


def _rate(row: TimeRow | None) -> float | None:
    return None if row is None else row.tflops
