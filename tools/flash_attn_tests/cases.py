"""The cases of a test: the product of all values of its parameters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Case = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """The cases of a test function, by number.

    axes: Names of parameters that vary together, and the rows of their values.
    """

    axes: tuple[tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]], ...]

    @classmethod
    def of(cls, function: Any) -> Grid:
        """Returns the grid of a test function's parametrize marks."""
        marks = [m for m in getattr(function, "pytestmark", []) if m.name == "parametrize"]
        return cls(tuple(_axis(*mark.args) for mark in marks))

    def __len__(self) -> int:
        return math.prod(len(rows) for _, rows in self.axes)

    def __getitem__(self, number: int) -> Case:
        case: Case = {}
        for names, rows in self.axes:
            number, place = divmod(number, len(rows))
            case |= zip(names, rows[place], strict=True)
        return case

    def __iter__(self) -> Iterator[Case]:
        return map(self.__getitem__, range(len(self)))


def _axis(
    names: str | Sequence[str], values: Sequence[Any]
) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",")]
    rows = tuple(tuple(value) if len(names) > 1 else (value,) for value in values)
    return tuple(names), rows


def runnable(grid: Grid, at_most: Mapping[str, int]) -> tuple[list[int], Counter[str]]:
    """Returns the numbers of the cases that may run, and counts the others by reason.

    at_most: The largest value of a parameter; ``seqlen`` applies to seqlen_q and seqlen_k, too.
    """
    numbers, reasons = [], Counter[str]()
    for number, case in enumerate(grid):
        why_not = _why_not(case, at_most)
        if why_not:
            reasons[why_not] += 1
        else:
            numbers.append(number)
    return numbers, reasons


def _why_not(case: Case, at_most: Mapping[str, int]) -> str:
    for wanted, maximum in at_most.items():
        if any(_is(name, wanted) and value > maximum for name, value in case.items()):
            return f"with {wanted} over {maximum}"
    return ""


def _is(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}_")
