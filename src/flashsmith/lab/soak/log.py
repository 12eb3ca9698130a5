"""Writes the log of a soak: one row of a CSV file for each kernel."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from flashsmith.lab.soak.session import Tally

COLUMNS = (
    "kernel", "variant", "verdict", "cases", "reruns", "worst_o", "worst_lse", "worst_gradient",
    "first_failure",
)  # fmt: skip
OK, WRONG, NOT_RUN = "ok", "wrong", "not run"


def verdict_of(tally: Tally) -> str:
    if tally.failures:
        return WRONG
    return OK if tally.cases else NOT_RUN


def rows(tallies: Iterable[Tally]) -> list[list[object]]:
    """Returns COLUMNS for each kernel; the worst error is a share of the allowed error."""
    return [
        [
            tally.instance.config.short_form(),
            tally.instance.variant.name,
            verdict_of(tally),
            tally.cases,
            tally.reruns,
            _worst(tally, "o"),
            _worst(tally, "lse"),
            _worst(tally, *(name for name in tally.ratios if name.startswith("d"))),
            f"{tally.failures[0].case}: {tally.failures[0].failure}" if tally.failures else "",
        ]
        for tally in tallies
    ]


def _worst(tally: Tally, *names: str) -> object:
    """Returns the worst ratio; empty if the kernel has none of these results."""
    found = [tally.ratios[name] for name in names if name in tally.ratios]
    return round(max(found), 3) if found else ""


def write_csv(path: Path, tallies: Iterable[Tally], stamp: Mapping[str, str]) -> None:
    """Replaces the file; its last columns say where and with which versions it was measured."""
    names = [name for name in ("date", "gpu", "driver_version", "cuda", "sources") if name in stamp]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COLUMNS, *names])
        writer.writerows([*row, *(stamp[name] for name in names)] for row in rows(tallies))


def reproduce(kernel: str, case: object) -> str:
    """Returns the command line that runs one kernel on one case."""
    return f'flashsmith soak --kernels "{kernel}" --case "{case}"'
