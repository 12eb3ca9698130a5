"""What all benchmarks have: a CSV file, which has each row as soon as it is measured, its stamp,
and a folder for them."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flashsmith.lab.bench.stamp import environment_stamp


def make_parser(description: str | None, *, required: bool = True) -> argparse.ArgumentParser:
    """Returns the command line of a benchmark, which has a folder for its files.

    required: Whether it cannot do without.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=required, help="folder for the results")
    return parser


def recorded(
    path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """The rows, each after it is in the file: what is measured stays if the next one fails.

    Raises:
        ValueError: a row has a key that is no column.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for row in rows:
            writer.writerow(row)
            file.flush()
            yield row


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """All at once, with the columns of the first."""
    for _ in recorded(path, list(rows[0]), rows):
        pass


def write_stamp(path: Path, device: str = "cuda", **more: Any) -> None:
    """Writes what ``path`` is measured with, kernels' hashes among it, to
    ``<name>_environment.json`` beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(environment_stamp(device) | more, indent=2)
    path.with_name(f"{path.stem}_environment.json").write_text(text + "\n")
