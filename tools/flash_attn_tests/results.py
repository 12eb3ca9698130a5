"""Reads pytest's outcomes, and writes the table of results, one row a test."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """The results of one test of the file.

    cases: Number of cases in the file.
    failed: Includes cases without an outcome, for example because a worker died.
    assertions: Number of assertions in the code; dropout alone reaches some of them.
    not_run: Numbers of cases that did not run, with the reasons.
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
    """Returns the numbers of passed and of skipped cases by test, from pytest's JUnit file."""
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
    """Returns text with a line for each test, and one for all."""
    lines = [
        f"{'passed':>7} {'failed':>7} {'skipped':>7} {'cases':>8}  test: why others did not run"
    ]
    for row in rows:
        counts = f"{row.passed:>7} {row.failed:>7} {row.skipped:>7} {row.cases:>8}"
        lines.append(f"{counts}  {row.test}: {row.not_run or '-'}")
    run, passed = sum(row.run for row in rows), sum(row.passed for row in rows)
    lines.append(f"{passed} of {run} cases passed")
    return "\n".join(lines)
