"""Defines a mutant: one change in one file, with a name that outlives other edits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A change that an operator can make at one place.

    ``mutate`` takes the file's text and returns the changed text; only the mutants that run call
    it. ``line`` counts from 1. ``code`` is that line's text, without indentation.
    """

    area: str
    file: str  # relative to the project's root
    line: int
    operator: str
    code: str
    id: str
    mutate: Callable[[str], str]

    @property
    def is_cxx(self) -> bool:
        return not self.file.endswith(".py")


def mutant_id(file: str, operator: str, code: str, nth: int) -> str:
    """Returns a name that depends on the changed line's text alone, not on edits elsewhere.

    nth: The number of earlier mutants of the same operator on lines of the same text in this file.
    """
    return hashlib.sha256(f"{file}\0{operator}\0{code}\0{nth}".encode()).hexdigest()[:10]


@dataclass(frozen=True)
class Change:
    """The lines that differ between a mutant's file and the original, joined by spaces."""

    before: str
    after: str


def change_between(old: str, new: str) -> Change:
    before, after = old.splitlines(), new.splitlines()
    while before and after and before[0] == after[0]:
        before, after = before[1:], after[1:]
    while before and after and before[-1] == after[-1]:
        before, after = before[:-1], after[:-1]
    return Change(_joined(before), _joined(after))


def _joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())
