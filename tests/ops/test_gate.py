"""What a tensor is, is asked before its memory is read: every argument of every public function,
as every kind of tensor that torch has, is taken and right, traced, or refused by its name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

import pytest

from support.gate import ALL
from support.gate_calls import OPERATIONS
from support.gate_worker import Worker
from support.strange import KINDS
from support.transforms import OF_GRADIENTS, TRANSFORMS

SEEDS = int(os.environ.get("FLASHSMITH_TEST_SEEDS", "2"))  # how many arguments of each call


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    found = Worker()
    yield found
    found.close()


def cases() -> Iterator[tuple[str, str]]:
    for operation in OPERATIONS:
        transforms = [kind for kind in TRANSFORMS if kind != "emptied before the backward"]
        kinds = OF_GRADIENTS if "gradients" in operation else transforms
        yield from ((operation, kind) for kind in (*KINDS, *kinds))


def drawn_arguments(operation: str, kind: str) -> list[str]:
    """Some of them, and all together."""
    arguments = [*OPERATIONS[operation].make(1)]
    some = min(SEEDS, len(arguments))
    return [*Random(f"{operation}, {kind}").sample(arguments, some), ALL]


@pytest.mark.parametrize(("operation", "kind"), cases())
def test_each_tensor_is_taken_traced_or_refused(worker: Worker, operation: str, kind: str) -> None:
    found = worker.verdicts(operation, kind, drawn_arguments(operation, kind))
    assert not {argument: words for argument, words in found.items() if words}
