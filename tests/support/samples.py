"""Selects a few of many similar items."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def covering(items: Iterable[T], has: Callable[[T], Iterable[Hashable]]) -> list[T]:
    """Returns some of the items, the same every time, that together have all that any item has.

    Greedy: each time, takes the first of the items that have most of what is missing.
    """
    each_has = {item: set(has(item)) for item in items}
    missing = set().union(*each_has.values())
    chosen: set[T] = set()
    while missing:
        best = max(each_has, key=lambda item: len(each_has[item] & missing))
        chosen.add(best)
        missing -= each_has[best]
    return [item for item in each_has if item in chosen]
