"""The files of a benchmark: a CSV file, which gets each row as soon as it is measured, its stamp,
and their folder."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flashsmith.lab.bench.stamp import environment_stamp


def make_parser(description: str | None, *, required: bool = True) -> argparse.ArgumentParser:
    """Returns the parser of a benchmark's command line, with the option for the files' folder.

    required: Whether the option must be passed.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=required, help="folder for the results")
    return parser


def recorded(
    path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Writes each row and then yields it, so that the file keeps it if the next one fails.

    Raises:
        ValueError: A row has a key that is no column.
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
    """Writes rows with the columns of the first one."""
    for _ in recorded(path, list(rows[0]), rows):
        pass


def write_stamp(path: Path, device: str = "cuda", **more: Any) -> None:
    """Writes the stamp of ``path``, with hashes of the kernels, to ``<name>_environment.json``
    beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(environment_stamp(device) | more, indent=2)
    path.with_name(f"{path.stem}_environment.json").write_text(text + "\n")
