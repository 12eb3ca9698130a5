"""The features in a kernel's name, `async+load_2_2_2_tiles`: their text and their meaning."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

C = TypeVar("C")

_PLACE = re.compile(r"\{\w+\}")  # the place of a number
_HASH = "{HASH}"  # the place of 12 hexadecimal digits
_HASH_DIGITS = 12


@dataclass(frozen=True)
class Feature:
    """One feature of a name.

    text: Its pattern, `async`, `stages_{N}`, `load_{Q}_{K}_{V}_tiles` or `score_{HASH}`.
    fields: The fields that it gives: a field that is on, or a number for each place in the text.
    absent: The fields' values if it is left out; None: it is never left out.
    former: The deprecated text, which is still read and no longer written.
    """

    text: str
    fields: tuple[str, ...] = ()
    absent: tuple[int, ...] | None = None
    former: str | None = None

    @property
    def name(self) -> str:
        """The name for people: `stages_N`."""
        return _PLACE.sub(lambda place: place[0].strip("{}"), self.text)

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        """A regular expression that matches it, with a group for each number."""
        text = self.text.replace(_HASH, f"([0-9a-f]{{{_HASH_DIGITS}}})")
        text = re.sub(r"\{[A-Z]+\}", r"(\\d+)", text)
        return re.compile(f"(?:{text}|{self.former})" if self.former else text)

    def write(self, owner: object) -> str:
        """Returns the feature's text for `owner`; "" if it is left out."""
        values = tuple(getattr(owner, field) for field in self.fields)
        if values == self.absent:
            return ""
        numbers = iter(values)
        return _PLACE.sub(lambda place: _digits(place[0], next(numbers)), self.text)

    def read(self, text: str) -> tuple[int, ...] | None:
        """Returns the fields' values if `text` is this feature, else None."""
        first = self.text.partition("{")[0]
        if not text.startswith(first) and text != self.former:
            return None  # seen faster than by the pattern
        match = self.pattern.fullmatch(text)
        if not match:
            return None
        if text == self.former:
            warn_of_former_name(text, self.text)
        base = 16 if _HASH in self.text else 10
        return tuple(int(number, base) for number in match.groups()) or (True,) * len(self.fields)


def flag(text: str, field: str, former: str | None = None) -> Feature:
    """Returns a feature that is present if a field is on."""
    return Feature(text, (field,), (False,), former)


def number(text: str, field: str, absent: int | None = None) -> Feature:
    """Returns the feature `text_N`, left out if the field is `absent`."""
    return Feature(f"{text}_{{N}}", (field,), None if absent is None else (absent,))


def hashed(text: str, field: str) -> Feature:
    """Returns the feature `text_` with 12 hexadecimal digits, left out if the field is 0."""
    return Feature(f"{text}_{_HASH}", (field,), (0,))


def warn_of_former_name(former: str, name: str) -> None:
    """Warns the caller of the function that read a name that the name is deprecated."""
    text = f"{former!r} is called {name!r} now; the former name goes in the next minor version"
    warnings.warn(text, DeprecationWarning, stacklevel=3)


def former_names(module: Mapping[str, object], **names: str) -> Callable[[str], object]:
    """Returns a module's ``__getattr__`` that reads former names, with a DeprecationWarning.

    Args:
        module: The module's globals.
        names: Former name = name.
    """

    def read(former: str) -> object:
        if former not in names:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {former!r}")
        warn_of_former_name(former, names[former])
        return module[names[former]]

    return read


def formerly(**names: str) -> Callable[[type[C]], type[C]]:
    """Returns a decorator that lets a dataclass's fields be passed and read by their former names,
    with a DeprecationWarning: ``@formerly(old="new")``."""

    def decorate(kind: type[C]) -> type[C]:
        plain = kind.__init__

        @functools.wraps(plain)
        def init(self: C, *args: Any, **given: Any) -> None:
            for former in names.keys() & given.keys():
                warn_of_former_name(former, names[former])
                given[names[former]] = given.pop(former)
            plain(self, *args, **given)

        kind.__init__ = init  # type: ignore[assignment, method-assign]
        for former, name in names.items():
            setattr(kind, former, property(_reader(former, name)))
        return kind

    return decorate


def _reader(former: str, name: str) -> Callable[[object], Any]:
    def read(owner: object) -> Any:
        warn_of_former_name(former, name)
        return getattr(owner, name)

    return read


def _digits(place: str, number: int) -> str:
    return f"{number:0{_HASH_DIGITS}x}" if place == _HASH else str(number)


def write_features(owner: object, features: Iterable[Feature]) -> str:
    """Returns the features of `owner`, joined by +, without those that are left out."""
    return "+".join(filter(None, (feature.write(owner) for feature in features)))


def read_features(texts: Iterable[str], features: Sequence[Feature]) -> dict[str, Any]:
    """Returns the values of the fields of all `features`, read from texts in any order.

    Raises:
        ValueError: A text is unknown or occurs twice, or a feature is missing that is never left
            out.
    """
    found: dict[str, tuple[int, ...]] = {}  # by the features' texts
    for text in texts:
        unread = (feature for feature in features if feature.text not in found)
        matches = ((feature, feature.read(text)) for feature in unread)
        feature, values = next((match for match in matches if match[1] is not None), (None, None))
        if feature is None or values is None:
            raise ValueError(
                f"its feature {text!r} is unknown or repeated; features are "
                f"{', '.join(feature.name for feature in features)}"
            )
        found[feature.text] = values
    fields: dict[str, Any] = {}
    for feature in features:
        values = found.get(feature.text, feature.absent)
        if values is None:
            raise ValueError(f"it has no {feature.name}")
        fields |= zip(feature.fields, values, strict=True)
    return fields
