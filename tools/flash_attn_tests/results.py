"""The table of results: one row a test, from what pytest wrote."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """What became of one test of the file.

    cases: In the file.
    failed: Also cases of which nothing is known, because a worker died for example.
    assertions: In its code; some are reached with dropout alone.
    not_run: How many cases did not run, and why.
    """

    test: str
    cases: int
    run: int
    passed: int
    failed: int
    skipped: int
    assertions: int
    not_run: str


def read_outcomes(path: Path) -> tuple[Counter[str], Counter[str]]:
    """Returns how many cases passed and how many were skipped, by test; from pytest's JUnit
    file."""
    passed, skipped = Counter[str](), Counter[str]()
    for case in ET.parse(path).getroot().iter("testcase"):
        test = case.get("name", "").partition("[")[0]
        tags = {child.tag for child in case}
        if not tags & {"failure", "error", "skipped"}:
            passed[test] += 1
        elif "skipped" in tags:
            skipped[test] += 1
    return passed, skipped


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [each.name for each in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def summary(rows: Sequence[Row]) -> str:
    """Returns a line a test, and one of all."""
    lines = [
        f"{'passed':>7} {'failed':>7} {'skipped':>7} {'cases':>8}  test: why others did not run"
    ]
    for row in rows:
        counts = f"{row.passed:>7} {row.failed:>7} {row.skipped:>7} {row.cases:>8}"
        lines.append(f"{counts}  {row.test}: {row.not_run or '-'}")
    run, passed = sum(row.run for row in rows), sum(row.passed for row in rows)
    lines.append(f"{passed} of {run} cases passed")
    return "\n".join(lines)
