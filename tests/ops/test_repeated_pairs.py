"""Later calls have the results of first calls, whatever a process remembers of calls.

Calls of one operation that differ in two things of all that they may differ in, made in turns in
one process: each has to come to the same, to the bit and to the word, as in a process that made
no call before. `FLASHSMITH_TEST_PAIRS` says how many pairs an operation is drawn (0: all of them,
with every combination of kernels, for hours), and `FLASHSMITH_TEST_SEED` which.
"""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Iterator

import pytest

from support.repeated_calls import make_calls
from support.repeated_draws import Things, difference, draw, pairs_of, usual_call
from support.zygote import Zygote

OPERATIONS = ("attention", "gradients", "backward", "decode", "wrappers")
MODULES = {name: f"repeated_{name}" for name in OPERATIONS}
# The number of pairs for each of two seeds, chosen to take a few seconds.
QUICK = {"attention": 3, "gradients": 1, "backward": 2, "decode": 4, "wrappers": 3}
PAIRS = os.environ.get("FLASHSMITH_TEST_PAIRS")
SEED = os.environ.get("FLASHSMITH_TEST_SEED") or str(random.SystemRandom().randrange(10**6))


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote(*(f"support.{module}" for module in MODULES.values()))
    yield zygote
    zygote.close()


def things_of(operation: str) -> Things:
    things: Things = importlib.import_module(f"support.{MODULES[operation]}").THINGS
    return things


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_drawn_is_taken_but_for_what_is_to_be_refused(
    zygote: Zygote, operation: str
) -> None:
    """Calls that all fail would all agree. Values that decide on a kernel are tried once, since
    each would need a build."""
    things = things_of(operation)
    changes = [
        (name, value, is_taken)
        for name, thing in things.items()
        for values, is_taken in ((thing.values, True), (thing.refused, False))
        for value in (values[:is_taken] if thing.decides else values)
    ]
    calls = [usual_call(MODULES[operation], things, {name: value}) for name, value, _ in changes]
    outcomes = zygote.run(make_calls, [(call, True) for call in calls])
    assert not [
        (name, value, outcome.error)
        for (name, value, is_taken), outcome in zip(changes, outcomes, strict=True)
        if (outcome.error is None) != is_taken
    ]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_call_comes_to_the_same_whatever_was_called_before(
    zygote: Zygote, operation: str
) -> None:
    things = things_of(operation)
    for seed in ("0", SEED):
        pairs = pairs_of(things)
        random.Random(f"{operation} {seed}").shuffle(pairs)
        for pair in pairs[: int(PAIRS or QUICK[operation]) or None]:
            calls = draw(MODULES[operation], things, pair, seed, few_kernels=PAIRS != "0")
            found = difference(zygote, calls)
            assert found is None, f"FLASHSMITH_TEST_SEED={seed}, {pair}\n{found}"
