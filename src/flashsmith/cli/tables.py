"""Output of all commands: tables and JSON on stdout, progress and remarks on stderr."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flashsmith.jit import show_progress
from flashsmith.lab.commands.reporter import Reporter

_WIDTH_OF_A_PIPE = 10_000  # nothing is folded or cut


def note(text: str) -> None:
    """Prints a remark for people on stderr."""
    typer.echo(text, err=True)


def print_json(document: Any) -> None:
    """Prints one document on stdout. Numbers that JSON lacks (nan, inf) become null."""
    typer.echo(json.dumps(_finite(document), indent=1, allow_nan=False, default=str))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table: Markdown with whole cells into a pipe, paragraphs on a narrow terminal.

    A number column is right-aligned. Cells are strings, numbers, rich Text, or None for "-".
    """
    console = _console()
    style = box.SIMPLE_HEAD if console.is_terminal else box.MARKDOWN
    table = Table(box=style, pad_edge=not console.is_terminal)
    for i, header in enumerate(headers):
        is_number = any(isinstance(row[i], int | float) for row in rows)
        table.add_column(header, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    unfolded = console.options.update(max_width=_WIDTH_OF_A_PIPE)
    if console.measure(table, options=unfolded).maximum <= console.width:
        _print(console, table)
        return
    for row in rows:
        cells = [str(_cell(value)) for value in row]
        facts = (
            f"{name} {cell}".strip() for name, cell in zip(headers[1:], cells[1:], strict=True)
        )
        console.print(cells[0], style="bold")
        console.print(Padding(", ".join(facts), (0, 0, 0, 2)))


def print_list(rows: Sequence[Sequence[object]]) -> None:
    """Prints rows in columns, without a frame; a cell may have several lines."""
    grid = Table.grid(padding=(0, 2))
    for _ in rows[0]:
        grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*(_cell(value) for value in row))
    _print(_console(), grid)


def _console() -> Console:
    width = None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE
    return Console(width=width, markup=False, emoji=False, highlight=False)


def _print(console: Console, table: Table) -> None:
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as printed:
        console.print(table)
    # rich pads lines, and draws an empty line where Markdown has no frame.
    typer.echo("\n".join(line.rstrip() for line in printed.get().splitlines() if line.strip()))


ON_STDERR = Reporter(note, show_progress)


class Stopwatch:
    """The seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self._start, 2)


def _cell(value: object) -> str | Text:
    if value is None:
        return "-"
    if isinstance(value, Text):
        return value
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
