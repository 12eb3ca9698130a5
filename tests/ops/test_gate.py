"""What a tensor is, is asked before its memory is read: every argument of every public function,
as every kind of tensor that torch has, is taken and right, traced, or refused by its name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.gate_calls import OPERATIONS
from support.gate_worker import Worker
from support.strange import KINDS
from support.transforms import TRANSFORMS


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    found = Worker()
    yield found
    found.close()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", [*KINDS, *TRANSFORMS])
def test_each_tensor_is_taken_traced_or_refused(worker: Worker, operation: str, kind: str) -> None:
    found = worker.verdicts(operation, kind)
    assert not {argument: words for argument, words in found.items() if words}
