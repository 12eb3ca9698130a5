"""A tuned table as CSV: the stamp in comments above the header, then a row for each kernel.

The rows of an entry follow each other, the fastest first, and those of excluded kernels last. The
first line says how many rows there are, so that a file that was cut off is known.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from flashsmith.configs import Workload, parse_kernel_name_into_config
from flashsmith.configs.workload import K_COLUMNS, ROW_COLUMNS
from flashsmith.selection.entries import Entry, Measured

FORMAT = 2
TITLE = "# flashsmith tuned table"

_SHAPE = (*ROW_COLUMNS, *K_COLUMNS)
_TIMES = ("ms", "ms_p20", "ms_p80", "tflops", "ms_back_to_back")
_COLUMNS = (*_SHAPE, "tried", "rule_ratio", "kernel", *_TIMES, "portfolio", "excluded")
_YES, _NO = "yes", "no"

Row = Mapping[str, str]


def to_text(stamp: Mapping[str, str], entries: Iterable[Entry]) -> str:
    rows = [row for entry in entries for row in _rows_of(entry)]
    text = io.StringIO()
    text.write(f"{TITLE}, format {FORMAT}, {len(rows)} rows\n")
    text.writelines(f"# {name}: {value}\n" for name, value in stamp.items())
    writer = csv.DictWriter(text, _COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def from_text(text: str) -> tuple[dict[str, str], list[Entry]]:
    """The stamp and the entries.

    Raises:
        ValueError: It is no such table, or not a whole one.
    """
    lines = text.splitlines(keepends=True)
    n_rows = _check_title(lines[0] if lines else "")
    n_comments = next((i for i, line in enumerate(lines) if line[0] != "#"), len(lines))
    stamp = dict(_stamped(line) for line in lines[1:n_comments])
    reader = csv.DictReader(lines[n_comments:])
    if tuple(reader.fieldnames or ()) != _COLUMNS:
        raise ValueError(f"its columns are not {', '.join(_COLUMNS)}")
    rows = list(reader)
    if len(rows) != n_rows or not text.endswith("\n"):
        raise ValueError(f"it was cut off: it has {len(rows)} of {n_rows} rows")
    groups = groupby(rows, key=lambda row: [row[name] for name in _SHAPE])
    return stamp, [_entry(list(group)) for _, group in groups]


def _check_title(line: str) -> int:
    """How many rows there should be."""
    match = re.fullmatch(rf"{TITLE}, format (\d+), (\d+) rows\n", line)
    if match is None:
        raise ValueError(f"its first line is not like {TITLE!r}")
    if match[1] != str(FORMAT):
        raise ValueError(f"its format is {match[1]}, this version reads {FORMAT}")
    return int(match[2])


def _stamped(line: str) -> tuple[str, str]:
    name, separator, value = line.removeprefix("# ").rstrip("\n").partition(": ")
    if not separator:
        raise ValueError(f"{line.rstrip()!r} is no line of a stamp")
    return name, value


def _rows_of(entry: Entry) -> Iterator[dict[str, object]]:
    ratio = "" if entry.rule_ratio is None else entry.rule_ratio
    of_entry = {**entry.workload.as_row(), "tried": entry.tried, "rule_ratio": ratio}
    for row in entry.ranked:
        times = {name: getattr(row, name) for name in _TIMES}
        portfolio = _YES if row.in_portfolio else _NO
        yield {**of_entry, "kernel": row.config.short_form(), **times, "portfolio": portfolio}
    for kernel, why in entry.excluded.items():
        yield {**of_entry, "kernel": kernel, "excluded": " ".join(why.split())}


def _entry(rows: list[Row]) -> Entry:
    first, measured = rows[0], [row for row in rows if not row["excluded"]]
    entry = Entry(
        Workload.from_row(first),
        tried=int(first["tried"]),
        excluded={row["kernel"]: row["excluded"] for row in rows if row["excluded"]},
        rule_ratio=float(first["rule_ratio"]) if first["rule_ratio"] else None,
        ranked=tuple(map(_measured, measured)),
    )
    for row in entry.ranked:
        if not _can_serve(row, entry.workload):
            raise ValueError(f"{row.config} cannot serve {entry.workload}")
    return entry


def _measured(row: Row) -> Measured:
    if row["portfolio"] not in (_YES, _NO):
        raise ValueError(f"portfolio is {row['portfolio']!r}; expected {_YES} or {_NO}")
    times: dict[str, Any] = {name: float(row[name]) for name in _TIMES if row[name]}
    config = parse_kernel_name_into_config(row["kernel"])
    return Measured(config, **times, in_portfolio=row["portfolio"] == _YES)


def _can_serve(row: Measured, workload: Workload) -> bool:
    return row.config.serves(workload.problem) and row.config.is_buildable()
