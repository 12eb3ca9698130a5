"""The expressions of kernels, by the numbers in their variants' names.

A name has no room for an expression. This process remembers the ones that it traced; other
processes read them from the cache's folder, as text.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from flashsmith import settings
from flashsmith.mods.expression import HASH_DIGITS, Expression

_known: dict[int, Expression] = {}

# The number of expressions that differ in constants alone, by the rest: each makes a kernel.
_alike: Counter[object] = Counter()
_MANY_ALIKE = 16


def remember(expression: Expression) -> int:
    """Makes an expression known here and in the cache's folder; returns its number.

    Raises:
        ValueError: Another expression has this number.
    """
    number = expression.number
    known = _known.get(number)
    if known is None:
        _known[number] = expression
        _warn_of_many(expression)
        with suppress(OSError):  # the build reports a cache that cannot be written
            _write(_path_of(number), expression.text)
    elif known.text != expression.text:
        raise ValueError(f"two expressions have the hash {expression.hash}; change one of them")
    return number


def expression_of(number: int) -> Expression:
    """Returns the expression with a number.

    Raises:
        ValueError: This process has not traced it, and its file is missing or damaged.
    """
    if number not in _known:
        path = _path_of(number)
        try:
            found = Expression.from_text(path.read_text())
        except (OSError, ValueError):
            found = None
        if found is None or found.number != number:
            raise ValueError(
                f"score_{number:0{HASH_DIGITS}x} is not known: no {path} says what it computes; "
                "call attention with its score_mod and mask_mod once, which writes that"
            )
        _known[number] = found
    return _known[number]


def _warn_of_many(expression: Expression) -> None:
    """Warns once of a function that is traced with a constant that changes from call to call."""
    shape = (
        tuple(
            replace(node, value=None) if node.operation == "constant" else node
            for node in expression.nodes
        ),
        expression.buffers,
        *expression.roots.items(),
    )
    _alike[shape] += 1
    if _alike[shape] == _MANY_ALIKE:
        warnings.warn(
            f"a score_mod or mask_mod has been traced with {_MANY_ALIKE} different numbers; each "
            "makes a kernel, which takes seconds to build and about a megabyte of disk and of "
            "memory: capture a tensor in place of a number that changes from call to call",
            stacklevel=2,
        )


def _path_of(number: int) -> Path:
    return settings.cache_folder() / "mods" / f"{number:0{HASH_DIGITS}x}.txt"


def _write(path: Path, text: str) -> None:
    """Writes the file atomically, unless it exists."""
    if path.exists():
        return
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)
