"""What a mutant is: one change in one file, named so that the name outlives other edits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A change that an operator can make at one place.

    ``mutate`` takes the file's text and returns the changed text; it is called only for the mutants
    that run. ``line`` counts from 1. ``code`` is that line's text, without indentation.
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
    """Depends on the changed line's text alone: edits elsewhere in the file do not rename it.

    nth: how many mutants of the same operator on lines of the same text come before, in this file.
    """
    return hashlib.sha256(f"{file}\0{operator}\0{code}\0{nth}".encode()).hexdigest()[:10]


@dataclass(frozen=True)
class Change:
    """What a mutant did to its file: the lines that differ, each side joined by spaces."""

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
