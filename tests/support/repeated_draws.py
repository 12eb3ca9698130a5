"""Draws sequences of calls of one operation that differ in two things."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from support.repeated_calls import Call, Outcome, make_calls
from support.zygote import Zygote


@dataclass(frozen=True)
class Thing:
    """Something in which calls of an operation may differ.

    values: All values; the first is the usual one.
    refused: Values that are errors in most calls.
    decides: Whether other values may need another kernel, which first has to be built.
    """

    values: tuple[Any, ...]
    refused: tuple[Any, ...] = ()
    decides: bool = False

    @property
    def all(self) -> tuple[Any, ...]:
        return (*self.values, *self.refused)


Things = Mapping[str, Thing]


def pairs_of(things: Things) -> list[tuple[str, ...]]:
    """Returns all pairs of things, and each alone."""
    return [*combinations(things, 2), *((name,) for name in things)]


def usual_call(operation: str, things: Things, changes: Mapping[str, Any]) -> Call:
    """Returns a call in which all things are usual except for some changes."""
    usual = {name: thing.values[0] for name, thing in things.items()}
    return Call(operation, tuple((usual | changes).items()))


def draw(
    operation: str, things: Things, changed: tuple[str, ...], seed: str, *, few_kernels: bool
) -> tuple[tuple[Call, bool], ...]:
    """Draws calls in random order, each several times: a base, one change of it, another, and both;
    or, for one thing, the base with all its values. Beside each: whether it keeps memory and
    objects.

    few_kernels: At most one of the things that decide the kernel is unusual.
    """
    rng = random.Random(f"{operation} {changed} {seed}")
    deciding = [name for name in changed if things[name].decides]
    usual = 1.0 if few_kernels else 0.6
    base = {}
    for name, thing in things.items():
        is_free = not thing.decides or deciding == [name]
        is_usual = rng.random() < (0.6 if is_free else usual)
        base[name] = thing.values[0] if is_usual else rng.choice(thing.values)
    if len(changed) == 1:
        variants = [base | {changed[0]: value} for value in things[changed[0]].all]
    else:
        first, second = ({name: _another(rng, things[name], base[name])} for name in changed)
        variants = [base, base | first, base | second]
        if len(deciding) < 2 or not few_kernels:
            variants.append(base | first | second)
    calls = [Call(operation, tuple(v.items())) for v in variants]
    order = calls * 2 + rng.choices(calls, k=2)
    rng.shuffle(order)
    return tuple((call, rng.random() < 0.7) for call in order)


def _another(rng: random.Random, thing: Thing, value: Any) -> Any:
    return rng.choice([each for each in thing.all if repr(each) != repr(value)])


def difference(zygote: Zygote, calls: Sequence[tuple[Call, bool]]) -> str | None:
    """Describes the first call whose outcome after earlier calls is not that in a fresh process;
    None if there is no such call."""
    fresh: dict[str, Outcome] = {}  # True is 1, as a key
    for number, (call, outcome) in enumerate(
        zip((call for call, _ in calls), zygote.run(make_calls, calls), strict=True)
    ):
        if str(call) not in fresh:
            (fresh[str(call)],) = zygote.run(make_calls, [(call, True)])
        if outcome != fresh[str(call)]:
            return _in_words(calls[: number + 1], fresh[str(call)], outcome)
    return None


def _in_words(calls: Sequence[tuple[Call, bool]], fresh: Outcome, repeated: Outcome) -> str:
    *before, (call, keeps) = calls
    usual = dict(call.chosen)
    lines = [f"{call.operation}: call {len(before)} is another in a fresh process: {call}"]
    for number, (other, kept) in enumerate(before):
        changes = {n: v for n, v in other.chosen if repr(v) != repr(usual[n])}
        lines.append(f"  call {number} had {changes or 'the same'}{', in place' if kept else ''}")
    lines += [f"  fresh:    {fresh}", f"  repeated: {repeated}, in place: {keeps}"]
    return "\n".join(lines)
