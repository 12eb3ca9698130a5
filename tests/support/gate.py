"""Says what is wrong with a call on a strange tensor, in words; empty if nothing is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from flashsmith.errors import EmulatorFault
from support.gate_calls import Operation, Tensors
from support.strange import KINDS, Kind, UnfitError
from support.transforms import TRANSFORMS, differ

ALL = "*"  # stands for every argument
_TYPED = (TypeError, ValueError, NotImplementedError, RuntimeError)


def verdict(given: Operation, kind: str, argument: str) -> str:
    try:
        if _is_not_ours(given, kind, argument):
            return ""
        if kind in KINDS:
            return _of_kind(given, KINDS[kind], argument)
        return _refusal_or(given, argument, lambda: TRANSFORMS[kind](given, argument), kind)
    except UnfitError:
        return ""


def _is_not_ours(given: Operation, kind: str, argument: str) -> bool:
    """Returns whether the caller's own code, or torch's autograd, fails before flashsmith runs."""
    if kind == "an inference tensor":
        return given.differentiates
    if kind in ("a list", "an array", "symbolic_trace"):
        own = given.differentiates and argument in ("q", ALL)
        functions = argument in ("table", "ids") or (argument == ALL and not given.traced)
        return own or functions
    return False


def chosen(given: Operation, argument: str) -> list[str]:
    return [*given.make(1)] if argument == ALL else [argument]


Results = tuple[tuple[torch.Tensor, ...], Tensors]  # results, and tensors that were written
_known: dict[int, Results] = {}


def expected_of(given: Operation) -> Results:
    """Returns the results of plain tensors."""
    if id(given) not in _known:
        tensors = given.make(1)
        results = given.call(**tensors)
        _known[id(given)] = results, {name: tensors[name] for name in given.written}
    return _known[id(given)]


def _of_kind(given: Operation, kind: Kind, argument: str) -> str:
    names = chosen(given, argument)
    tensors = given.make(1)
    make, around = kind.begin()
    strange: dict[str, Any] = dict(tensors)
    for name in names:
        try:
            strange[name] = make(tensors[name])
        except UnfitError:
            if argument != ALL:
                raise

    def call() -> str:
        with around:
            results = given.call(**strange)
        if kind.expected == "refused":
            return f"taken, and gave {_described(results)}"
        if kind.value is not None:
            values = {n: kind.value(t) if n in names else t for n, t in given.make(1).items()}
            expected = given.call(**values), {n: values[n] for n in given.written}
        else:
            expected = expected_of(given)
        if kind.expected == "shape":
            return _without_values(results, expected[0])
        return _compared(kind, strange, results, expected)

    # With fake tensors, the message may just as well name a real one.
    named = ALL if kind.expected == "shape" else argument
    words = _refusal_or(given, named, call, "")
    if kind.expected == "taken" and words.startswith(_REFUSED):
        return words
    return "" if words.startswith(_REFUSED) else words


_REFUSED = "refused: "


def _refusal_or(given: Operation, argument: str, run: Callable[[], str], kind: str) -> str:
    """Returns a run's verdict; or, if it was refused, whether the message names the argument."""
    try:
        return run()
    except UnfitError:
        raise
    except EmulatorFault as error:
        return f"reached the kernel: {error}"
    except _TYPED as error:
        # Within a transform, results that torch computes from plain tensors are wrapped, too.
        named = chosen(given, ALL if kind else argument)
        names = "|".join(given.names(each) for each in named)
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


def _compared(kind: Kind, strange: Mapping[str, Any], results: Any, expected: Results) -> str:
    """Compares results, and written tensors, with those of plain tensors of the same values."""
    for i, (own, right) in enumerate(zip(results, expected[0], strict=True)):
        if wrong := differ(kind.plain(own), right):
            return f"result {i}: {wrong}"
    for name, right in expected[1].items():
        if wrong := differ(kind.plain(strange[name]), right):
            return f"{name} was written: {wrong}"
    return ""
