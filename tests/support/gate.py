"""What comes of a call with a tensor that is not what it seems: "" or what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from flashsmith.errors import EmulatorFault
from support.gate_calls import OPERATIONS, Operation, Tensors
from support.strange import KINDS, Kind, UnfitError
from support.transforms import TRANSFORMS, differ

ALL = "*"  # in place of an argument: each of them
_TYPED = (TypeError, ValueError, NotImplementedError, RuntimeError)


def verdicts(operation: str, kind: str) -> dict[str, str]:
    """Of each argument, and of all together."""
    return dict(each_verdict(operation, kind))


def each_verdict(operation: str, kind: str) -> Iterator[tuple[str, str]]:
    given = OPERATIONS[operation]
    for argument in arguments_of(given):
        yield argument, verdict(given, kind, argument)


def arguments_of(given: Operation) -> list[str]:
    return [*given.make(1), ALL]


def verdict(given: Operation, kind: str, argument: str) -> str:
    try:
        if kind in KINDS:
            return _of_kind(given, KINDS[kind], argument)
        return _refusal_or(given, argument, lambda: TRANSFORMS[kind](given, argument), kind)
    except UnfitError:
        return ""


def chosen(given: Operation, argument: str) -> list[str]:
    return [*given.make(1)] if argument == ALL else [argument]


def _of_kind(given: Operation, kind: Kind, argument: str) -> str:
    names = chosen(given, argument)
    plain = given.make(1)
    values = {n: kind.value(t) if n in names else t for n, t in given.make(1).items()}
    make, around = kind.begin()
    strange = dict(plain)
    for name in names:
        try:
            strange[name] = make(plain[name])
        except UnfitError:
            if argument != ALL:
                raise

    def call() -> str:
        with around:
            results = given.call(**strange)
        if kind.expected == "refused":
            return f"taken, and gave {_described(results)}"
        expected = given.call(**values)
        if kind.expected == "shape":
            return _without_values(results, expected)
        return _compared(given, kind, strange, results, values, expected)

    words = _refusal_or(given, argument, call, "")
    if kind.expected == "taken" and words.startswith(_REFUSED):
        return words
    return "" if words.startswith(_REFUSED) else words


_REFUSED = "refused: "


def _refusal_or(given: Operation, argument: str, run: Callable[[], str], kind: str) -> str:
    """What a run says; or whether it was refused in words that name the argument."""
    try:
        return run()
    except UnfitError:
        raise
    except EmulatorFault as error:
        return f"reached the kernel: {error}"
    except _TYPED as error:
        names = "|".join(given.names(each) for each in chosen(given, argument))
        if re.search(names, str(error)):
            return "" if kind else f"{_REFUSED}{error}"
        return f"a nameless {type(error).__name__}: {str(error)[:200]}"
    except BaseException as error:
        return f"no typed refusal but {type(error).__name__}: {str(error)[:200]}"


def _described(results: Any) -> str:
    return ", ".join(f"{type(t).__name__}{tuple(t.shape)}" for t in results)


def _without_values(results: Any, expected: Any) -> str:
    for own, right in zip(results, expected, strict=True):
        if not (isinstance(own, FakeTensor) or own.is_meta):
            return f"a {type(own).__name__} with values came of what has none"
        if (own.shape, own.dtype) != (right.shape, right.dtype):
            return f"{own.dtype}{tuple(own.shape)}, expected {right.dtype}{tuple(right.shape)}"
    return ""


def _compared(
    given: Operation,
    kind: Kind,
    strange: Mapping[str, Any],
    results: Any,
    values: Tensors,
    expected: Any,
) -> str:
    """Results, and what was written, with those of plain tensors of the same values."""
    for i, (own, right) in enumerate(zip(results, expected, strict=True)):
        if wrong := differ(kind.plain(own), right):
            return f"result {i}: {wrong}"
    for name in given.written:
        own = kind.plain(strange[name])
        if wrong := differ(own, values[name]):
            return f"{name} was written: {wrong}"
    return ""
