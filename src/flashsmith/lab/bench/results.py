"""Rows of a benchmark, and the CSV file that keeps them through an interruption."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from flashsmith.configs import Workload
from flashsmith.configs.workload import K_COLUMNS, ROW_COLUMNS
from flashsmith.runtime.counters import COUNTERS

OK = "ok"
WRONG = "wrong"  # the result differs from the reference; not timed
FAILED = "failed"  # the candidate raised an error; not timed
MISSING = "missing"  # the peer is not installed here

IN_TURN = "in-turn"
BACK_TO_BACK = "back-to-back"
REGIMES = (IN_TURN, BACK_TO_BACK)  # lab/bench/timer.py explains them

KERNEL = "kernel"
PEER = "peer"


def with_regime(stem: str, regime: str) -> str:
    """Returns a file's name for the results of a regime."""
    return stem if regime == IN_TURN else f"{stem}_{regime.replace('-', '_')}"


_ADDED = "added"  # marks a column that older files lack, and whose default is true of them


@dataclass(frozen=True)
class Row:
    """One candidate on one workload; in files, the workload's columns replace ``workload``."""

    kernel: str  # a peer's name or a kernel's short form
    kind: str  # KERNEL or PEER
    workload: Workload
    status: str = field(default=OK, kw_only=True)
    reason: str = field(default="", kw_only=True)  # if the status is not OK

    def as_dict(self) -> dict[str, Any]:
        """Returns the values of the row by column."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            found |= value.as_row() if each.name == "workload" else {each.name: value}
        return found


@dataclass(frozen=True)
class TimeRow(Row):
    """The time of a candidate on a GPU."""

    ms: float | None = None  # median
    ms_p20: float | None = None
    ms_p80: float | None = None
    tflops: float | None = None
    share_of_ceiling: float | None = None  # of the matrix product measured in the same run
    ratio_to_best_peer: float | None = None  # of TFLOP/s
    sm_clock_mhz: float | None = None  # medians while the shape was timed
    power_w: float | None = None
    error: float | None = None  # largest difference from the reference
    tolerance: float | None = None
    regime: str = field(default=IN_TURN, metadata={_ADDED: True})


@dataclass(frozen=True)
class CountRow(Row):
    """The emulator's counts of a kernel (runtime/counters.py)."""

    mma: int | None = None
    ldmatrix: int | None = None
    cp_async: int | None = None
    wgmma: int | None = None
    wgmma_shared_bytes: int | None = None
    tma_load_bytes: int | None = None
    tma_store_bytes: int | None = None
    mbarrier_waits: int | None = None
    mbarrier_arrivals: int | None = None
    named_barriers: int | None = None
    barriers: int | None = None
    shared_wavefronts: int | None = None
    shared_wavefronts_ideal: int | None = None  # without bank conflicts
    global_load_sectors: int | None = None
    global_store_sectors: int | None = None
    error: float | None = None
    tolerance: float | None = None

    @property
    def counts(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in COUNTERS if hasattr(self, name)}


R = TypeVar("R", bound=Row)

_PARSERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "float | None": lambda text: float(text) if text else None,
    "int | None": lambda text: int(text) if text else None,
}


def columns_of(kind: type[Row]) -> list[str]:
    of_row: Iterable[Field[Any]] = fields(kind)
    shapes = (*ROW_COLUMNS, *K_COLUMNS)
    names = ((each.name,) if each.name != "workload" else shapes for each in of_row)
    return [column for columns in names for column in columns]


def to_csv(kind: type[R], rows: Iterable[R], header: bool = True) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(columns_of(kind))
    writer.writerows([_cell(value) for value in row.as_dict().values()] for row in rows)
    return text.getvalue()


def read_csv(kind: type[R], path: Path) -> list[R]:
    """Returns the rows of a file, without a last line that was cut off.

    Older files may lack columns that were added later; their rows get the defaults.

    Raises:
        ValueError: The columns are not those of ``kind``, or a value does not fit its column.
    """
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    whole = text[: text.rfind("\n") + 1]
    reader = csv.reader(io.StringIO(whole))
    try:
        header = next(reader, columns_of(kind))
        if not _are_columns_of(kind, header):
            raise ValueError(f"it has columns {', '.join(header)}; it was not written by this")
        return [_parse(kind, dict(zip(header, cells, strict=True))) for cells in reader]
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def _parse(kind: type[R], cells: Mapping[str, str]) -> R:
    values = {
        each.name: _PARSERS[str(each.type)](cells[each.name])
        for each in fields(kind)
        if each.name in cells
    }
    return kind(workload=Workload.from_row(cells), **values)


def _are_columns_of(kind: type[Row], header: Sequence[str]) -> bool:
    """Returns whether a file with this header has rows of ``kind``; columns that were added later
    may be missing."""
    added = {*K_COLUMNS, *(each.name for each in fields(kind) if _ADDED in each.metadata)}
    expected = [name for name in columns_of(kind) if name in header or name not in added]
    return header == expected


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join(str(value).split())  # one line, so that a file that was cut off is noticed


class ResultFile(Generic[R]):
    """The rows of one benchmark, on disk as soon as they are appended.

    Args:
        shared: The values of columns that are the same in all rows.
    """

    def __init__(self, kind: type[R], path: Path, **shared: str) -> None:
        self.kind = kind
        self.path = path
        self.shared = shared
        self.rows: list[R] = read_csv(kind, path) if path.exists() else []
        self._write_all()  # without a line that was cut off

    def of(self, workload: Workload) -> list[R]:
        return [row for row in self.rows if row.workload == workload]

    def append(self, rows: Sequence[R]) -> None:
        """Appends rows, which are on disk when this returns."""
        self.rows += rows
        with self.path.open("a") as file:
            file.write(to_csv(self.kind, rows, header=False))
            file.flush()
            os.fsync(file.fileno())

    def keep(self, wanted: Callable[[R], bool]) -> None:
        """Removes the rows that are not wanted."""
        kept = [row for row in self.rows if wanted(row)]
        if len(kept) != len(self.rows):
            self.rows = kept
            self._write_all()

    def _write_all(self) -> None:
        staged = self.path.with_name(self.path.name + ".new")
        staged.write_text(to_csv(self.kind, self.rows))
        staged.replace(self.path)
