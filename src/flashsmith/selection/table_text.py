"""A tuned table as CSV: a row for each kernel, beside the columns of its operation's workloads.

The rows of an entry follow each other, fastest first, and excluded kernels last. The first line
names the operation, except for the forward.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from flashsmith.configs import KernelConfig, parse_kernel_name_into_config
from flashsmith.configs.family import C, W
from flashsmith.configs.operation import Operation
from flashsmith.configs.registry import FORWARD, OPERATIONS, operation_of
from flashsmith.configs.workload import flag_text, read_flag
from flashsmith.selection.entries import Entry, Measured
from flashsmith.selection.stamped_csv import Row, StampedCsv, read_count, read_measure

FORMAT = 2

_TIMES = ("ms", "ms_p20", "ms_p80", "tflops", "ms_back_to_back")
_COLUMNS = ("tried", "heuristic_ratio", "kernel", *_TIMES, "portfolio", "excluded")


def title_of(operation: Operation[Any, Any]) -> str:
    """Returns the beginning of the first line of the operation's tables."""
    return "# flashsmith tuned table" + ("" if operation is FORWARD else f" of {operation.name}")


def to_text(
    operation: Operation[W, C], stamp: Mapping[str, str], entries: Iterable[Entry[W, C]]
) -> str:
    return _csv_of(operation).to_text(stamp, [row for entry in entries for row in _rows_of(entry)])


def from_text(text: str) -> tuple[Operation[Any, Any], dict[str, str], list[Entry[Any, Any]]]:
    """Returns a table's operation, stamp and entries. Raises ValueError: The text has another
    format or is truncated."""
    named = (each for each in OPERATIONS if text.startswith(f"{title_of(each)},"))
    operation = next(named, FORWARD)
    stamp, rows = _csv_of(operation).from_text(text)
    shape = operation.workload.COLUMNS
    groups = groupby(rows, key=lambda row: [row[name] for name in shape])
    return operation, stamp, [_entry(operation, list(group)) for _, group in groups]


def _csv_of(operation: Operation[Any, Any]) -> StampedCsv:
    columns = (*operation.workload.COLUMNS, *_COLUMNS)
    return StampedCsv(title_of(operation), FORMAT, columns)


def _rows_of(entry: Entry[W, C]) -> Iterator[dict[str, object]]:
    ratio = "" if entry.heuristic_ratio is None else entry.heuristic_ratio
    of_entry = {**entry.workload.as_row(), "tried": entry.tried, "heuristic_ratio": ratio}
    for row in entry.ranked:
        times = {name: getattr(row, name) for name in _TIMES}
        portfolio = flag_text(row.in_portfolio)
        yield {**of_entry, "kernel": row.config.short_form(), **times, "portfolio": portfolio}
    for kernel, why in entry.excluded.items():
        yield {**of_entry, "kernel": kernel, "excluded": " ".join(why.split())}


def _entry(operation: Operation[W, C], rows: list[Row]) -> Entry[W, C]:
    first, measured = rows[0], [row for row in rows if not row["excluded"]]
    entry: Entry[W, C] = Entry(
        operation.workload.from_row(first),
        tried=read_count(first, "tried"),
        excluded={row["kernel"]: row["excluded"] for row in rows if row["excluded"]},
        heuristic_ratio=read_measure(first, "heuristic_ratio")
        if first["heuristic_ratio"]
        else None,
        ranked=tuple(map(_measured, measured)),
    )
    has_tflops = entry.workload.tflops(1.0) is not None
    for row in entry.ranked:
        if (row.tflops is not None) != has_tflops:
            raise ValueError(f"tflops is {row.tflops} for {entry.workload}")
        if why := _why_not(operation, row.config, entry.workload):
            raise ValueError(f"{row.config} cannot serve {entry.workload}: {why}")
    return entry


def _measured(row: Row) -> Measured[Any]:
    in_portfolio = read_flag(row, "portfolio")
    times: dict[str, Any] = {name: read_measure(row, name) for name in _TIMES if row[name]}
    return Measured(_config_of(row["kernel"]), **times, in_portfolio=in_portfolio)


@functools.cache
def _config_of(name: str) -> Any:
    """Returns the configuration of a kernel's name, which stands in many rows of a table."""
    return parse_kernel_name_into_config(name)


def _why_not(operation: Operation[W, C], config: C, workload: W) -> str:
    if operation_of(config) is not operation:
        return f"it is one of the {config.operation}"
    if why := operation.why_not(config, workload):
        return why
    return "" if _is_buildable(config) else "no GPU has room for it"


@functools.cache  # one stands in many rows
def _is_buildable(config: KernelConfig) -> bool:
    return config.is_buildable()
