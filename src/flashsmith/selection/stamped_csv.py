"""CSV files of measurements: the stamp in comments above the header, then rows.

The first line says how many rows there are, so that a truncated file is noticed.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Row = Mapping[str, str]


@dataclass(frozen=True)
class StampedCsv:
    """The format of one kind of file.

    title: The beginning of the first line.
    format: The format's number, which changes with the columns or their meaning.
    """

    title: str
    format: int
    columns: tuple[str, ...]

    def to_text(self, stamp: Mapping[str, str], rows: Sequence[Mapping[str, object]]) -> str:
        text = io.StringIO()
        text.write(f"{self.title}, format {self.format}, {len(rows)} rows\n")
        text.writelines(f"# {name}: {value}\n" for name, value in stamp.items())
        writer = csv.DictWriter(text, self.columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def from_text(self, text: str) -> tuple[dict[str, str], list[Row]]:
        """Returns the stamp and the rows.

        Raises:
            ValueError: The text has another format or is truncated.
        """
        try:
            return self._from_text(text)
        except csv.Error as error:
            raise ValueError(f"it is no CSV: {error}") from None

    def _from_text(self, text: str) -> tuple[dict[str, str], list[Row]]:
        lines = text.splitlines(keepends=True)
        n_rows = self._check_title(lines[0] if lines else "")
        n_comments = next((i for i, line in enumerate(lines) if line[0] != "#"), len(lines))
        stamp = dict(_stamped(line) for line in lines[1:n_comments])
        reader = csv.DictReader(lines[n_comments:])
        if tuple(reader.fieldnames or ()) != self.columns:
            raise ValueError(f"its columns are not {', '.join(self.columns)}")
        rows: list[Row] = list(reader)
        if len(rows) != n_rows or not text.endswith("\n"):
            raise ValueError(f"it was cut off: it has {len(rows)} of {n_rows} rows")
        return stamp, rows

    def _check_title(self, line: str) -> int:
        """Returns the number of rows that the first line promises."""
        match = re.fullmatch(rf"{self.title}, format (\d+), (\d+) rows\n", line)
        if match is None:
            raise ValueError(f"its first line is not like {self.title!r}")
        if match[1] != str(self.format):
            raise ValueError(f"its format is {match[1]}, this version reads {self.format}")
        return int(match[2])


def _stamped(line: str) -> tuple[str, str]:
    name, separator, value = line.removeprefix("# ").rstrip("\n").partition(": ")
    if not separator:
        raise ValueError(f"{line.rstrip()!r} is no line of a stamp")
    return name, value


def read_measure(row: Row, name: str) -> float:
    """Returns a time, a speed or a ratio. Raises ValueError: The value is not finite and above
    0."""
    value = float(row[name])
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {row[name]!r}; expected a number above 0")
    return value


def read_count(row: Row, name: str) -> int:
    """Returns a count. Raises ValueError: The value is not a whole number from 0 on."""
    value = int(row[name])
    if value < 0:
        raise ValueError(f"{name} is {row[name]!r}; expected a whole number from 0 on")
    return value


def replace_file(path: Path, text: str) -> None:
    """Replaces a file atomically: a reader sees the old or the new one. Makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(staged).chmod(0o644)
        Path(staged).replace(path)
    except BaseException:
        Path(staged).unlink(missing_ok=True)
        raise
