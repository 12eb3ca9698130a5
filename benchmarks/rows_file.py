"""The CSV file of a benchmark, which has each row as soon as it is measured."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def recorded(
    path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """The rows, each after it is in the file: what is measured stays if the next one fails.

    Raises:
        ValueError: a row has a key that is no column.
    """
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for row in rows:
            writer.writerow(row)
            file.flush()
            yield row
