"""The expressions that kernels were asked for, by the numbers in their variants' names.

A name has no room for what it computes. This process knows what it has traced; others find it in
the cache's folder, as text.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from flashsmith import settings
from flashsmith.mods.expression import HASH_DIGITS, Expression

_known: dict[int, Expression] = {}


def remember(expression: Expression) -> int:
    """Makes an expression known here and in the cache's folder; returns its number.

    Raises:
        ValueError: another expression has this number.
    """
    number = expression.number
    known = _known.get(number)
    if known is None:
        _known[number] = expression
        with suppress(OSError):  # a cache that cannot be written is the build's to report
            _write(_path_of(number), expression.text)
    elif known.text != expression.text:
        raise ValueError(f"two expressions have the hash {expression.hash}; change one of them")
    return number


def expression_of(number: int) -> Expression:
    """The expression with a number.

    Raises:
        ValueError: nobody has traced it here, or its file is damaged.
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


def _path_of(number: int) -> Path:
    return settings.cache_folder() / "mods" / f"{number:0{HASH_DIGITS}x}.txt"


def _write(path: Path, text: str) -> None:
    """Whole, or not at all."""
    if path.exists():
        return
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)
