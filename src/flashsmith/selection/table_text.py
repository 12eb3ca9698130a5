"""A tuned table as CSV: a row for each kernel.

The rows of an entry follow each other, the fastest first, and those of excluded kernels last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from flashsmith.configs import Workload, parse_kernel_name_into_config
from flashsmith.configs.workload import K_COLUMNS, ROW_COLUMNS
from flashsmith.selection.entries import Entry, Measured
from flashsmith.selection.stamped_csv import (
    Row,
    StampedCsv,
    flag_text,
    read_count,
    read_flag,
    read_measure,
)

FORMAT = 2
TITLE = "# flashsmith tuned table"

_SHAPE = (*ROW_COLUMNS, *K_COLUMNS)
_TIMES = ("ms", "ms_p20", "ms_p80", "tflops", "ms_back_to_back")
_COLUMNS = (*_SHAPE, "tried", "rule_ratio", "kernel", *_TIMES, "portfolio", "excluded")
_CSV = StampedCsv(TITLE, FORMAT, _COLUMNS)


def to_text(stamp: Mapping[str, str], entries: Iterable[Entry]) -> str:
    return _CSV.to_text(stamp, [row for entry in entries for row in _rows_of(entry)])


def from_text(text: str) -> tuple[dict[str, str], list[Entry]]:
    """The stamp and the entries. Raises ValueError: It is no such table, or not a whole one."""
    stamp, rows = _CSV.from_text(text)
    groups = groupby(rows, key=lambda row: [row[name] for name in _SHAPE])
    return stamp, [_entry(list(group)) for _, group in groups]


def _rows_of(entry: Entry) -> Iterator[dict[str, object]]:
    ratio = "" if entry.rule_ratio is None else entry.rule_ratio
    of_entry = {**entry.workload.as_row(), "tried": entry.tried, "rule_ratio": ratio}
    for row in entry.ranked:
        times = {name: getattr(row, name) for name in _TIMES}
        portfolio = flag_text(row.in_portfolio)
        yield {**of_entry, "kernel": row.config.short_form(), **times, "portfolio": portfolio}
    for kernel, why in entry.excluded.items():
        yield {**of_entry, "kernel": kernel, "excluded": " ".join(why.split())}


def _entry(rows: list[Row]) -> Entry:
    first, measured = rows[0], [row for row in rows if not row["excluded"]]
    entry = Entry(
        Workload.from_row(first),
        tried=read_count(first, "tried"),
        excluded={row["kernel"]: row["excluded"] for row in rows if row["excluded"]},
        rule_ratio=read_measure(first, "rule_ratio") if first["rule_ratio"] else None,
        ranked=tuple(map(_measured, measured)),
    )
    for row in entry.ranked:
        if not _can_serve(row, entry.workload):
            raise ValueError(f"{row.config} cannot serve {entry.workload}")
    return entry


def _measured(row: Row) -> Measured:
    in_portfolio = read_flag(row, "portfolio")
    times: dict[str, Any] = {name: read_measure(row, name) for name in _TIMES if row[name]}
    config = parse_kernel_name_into_config(row["kernel"])
    return Measured(config, **times, in_portfolio=in_portfolio)


def _can_serve(row: Measured, workload: Workload) -> bool:
    return row.config.serves(workload.problem) and row.config.is_buildable()
