"""Compares two lists of functions' fingerprints, and reads and writes them as CSV files."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from flashsmith.lab.bench.machine_code_record import CodeRow

_HEADINGS = ("kernel", "arch", "instructions", "sha256")
_Place = tuple[str, str]  # kernel, architecture


def differences(before: Iterable[CodeRow], after: Iterable[CodeRow]) -> dict[_Place, str]:
    """Returns a sentence for each kernel and architecture whose machine code differs.

    A kernel has one function or several; their names and order do not count.
    """
    old, new = _functions(before), _functions(after)
    return {
        place: f"{' '.join(place)}: {_what_differs(old.get(place), new.get(place))}"
        for place in old | new
        if old.get(place) != new.get(place)
    }


def _functions(rows: Iterable[CodeRow]) -> dict[_Place, list[tuple[int, str]]]:
    found = defaultdict(list)
    for kernel, arch, instructions, sha in sorted(rows):
        found[kernel, arch].append((instructions, sha))
    return found


def _what_differs(old: list[tuple[int, str]] | None, new: list[tuple[int, str]] | None) -> str:
    if old is None or new is None:
        return "only after" if old is None else "only before"
    was, now = (" + ".join(str(n) for n, _ in functions) for functions in (old, new))
    return f"{was} instructions before, {now} after"


def read(path: Path) -> list[CodeRow]:
    with path.open(newline="") as file:
        return [(kernel, arch, int(n), sha) for kernel, arch, n, sha in [*csv.reader(file)][1:]]


def write(path: Path, rows: Iterable[CodeRow]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([_HEADINGS, *rows])
