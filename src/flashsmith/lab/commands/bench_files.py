"""Writes a benchmark's files: Markdown and plots of the measured rows."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from flashsmith.lab.bench import summary
from flashsmith.lab.bench.results import REGIMES, CountRow, TimeRow, with_regime
from flashsmith.lab.bench.session import Session

COUNTS_CSV = "counts.csv"


def times_csv(regime: str) -> str:
    return f"{with_regime('forward', regime)}.csv"


def find_plots(note: Callable[[str], None]) -> ModuleType | None:
    """Returns the module that draws plots; None, after a note, if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        note(
            "no plots: matplotlib is not installed (`pip install 'flashsmith[bench]'`); the same "
            "command draws them afterwards"
        )
        return None
    from flashsmith.lab.bench import plots

    return plots


def remove_reports(out: Path) -> None:
    """Removes the Markdown files and plots of all regimes, because their rows are discarded."""
    for stem in ("forward", "tflops", "roofline"):
        for name in (with_regime(stem, regime) for regime in REGIMES):
            for suffix in (".md", ".png", ".svg"):
                (out / f"{name}{suffix}").unlink(missing_ok=True)


def write_times(
    rows: Sequence[TimeRow], session: Session, out: Path, plots: ModuleType | None
) -> list[Path]:
    """Writes Markdown and plots of one regime, and returns the paths of all its files."""
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
    """Writes Markdown and plots of what the emulator counted, and returns the paths."""
    table = out / COUNTS_CSV
    markdown = table.with_suffix(".md")
    markdown.write_text(summary.counts_markdown(rows, session.document))
    files = plots.plot_counts(rows, out) if plots else []
    return [table, markdown, session.path, *files]
