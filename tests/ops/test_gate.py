"""Every argument of every public function is tried with every kind of tensor that torch has: the
call is right, or traced, or refused by the argument's name, before any memory is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

import pytest
import torch

from flashsmith.reference import reference_varlen
from support.gate import ALL
from support.gate_calls import OPERATIONS, functions_of
from support.gate_worker import Worker
from support.strange import KINDS
from support.transforms import OF_GRADIENTS, TRANSFORMS

# The number of arguments that each call tries; from 5 on every call tries every kind of tensor.
SEEDS = int(os.environ.get("FLASHSMITH_TEST_SEEDS", "2"))
SHARE = 1.0 if SEEDS >= 5 else 0.4  # the share of kinds that calls outside of ALWAYS try
TRUTHS = (
    *("attention", "attention, packed", "attention, used", "attention, functions"),
    "attention, blocks",
)
# The tests make no leaves of these kinds: torch refuses, or aborts on a machine without the device.
NO_LEAVES = (
    "an UninitializedParameter",
    "quantised",
    "fake, inside",
    "fake of cuda",
    "fake of mps",
)
ALWAYS = ("attention", "attention, functions", "attention, gradients", "decode")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    found = Worker()
    yield found
    found.close()


def cases() -> Iterator[tuple[str, str]]:
    for operation in OPERATIONS:
        transforms = [kind for kind in TRANSFORMS if kind != "emptied before the backward"]
        kinds = OF_GRADIENTS if OPERATIONS[operation].differentiates else transforms
        for kind in (*KINDS, *kinds):
            if OPERATIONS[operation].differentiates and kind in NO_LEAVES:
                continue
            drawn = Random(f"{kind}, {operation}").random() < SHARE
            if operation in ALWAYS or drawn:
                yield operation, kind


def drawn_arguments(operation: str, kind: str) -> list[str]:
    """Returns some of the arguments, and ALL for all of them together."""
    arguments = [*OPERATIONS[operation].make(1)]
    some = min(SEEDS, len(arguments))
    return [*Random(f"{operation}, {kind}").sample(arguments, some), ALL]


@pytest.mark.parametrize(("operation", "kind"), list(cases()))
def test_each_tensor_is_taken_traced_or_refused(worker: Worker, operation: str, kind: str) -> None:
    found = worker.verdicts(operation, kind, drawn_arguments(operation, kind))
    assert not {argument: words for argument, words in found.items() if words}


def seen_blocks(given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the keys seen through blocks() of 8 queries and 8 keys: each block of queries sees
    one block in part and one whole."""
    seen = torch.zeros(16, 24, dtype=torch.bool)
    i, j = torch.arange(16)[:, None], torch.arange(24)
    for block in range(2):
        own = i // 8 == block
        partial, full = (given[name][0, 0, block, 0] for name in ("kv_indices", "full_kv_indices"))
        seen |= own & ((j // 8 == full) | ((j // 8 == partial) & (i <= j)))
    return seen


def truth(operation: str, given: dict[str, torch.Tensor]) -> torch.Tensor:
    given = {name: t for name, t in given.items() if name != "out"}
    if operation == "attention":
        return reference_varlen(**given, causal=True)[0]
    if operation == "attention, packed":
        return reference_varlen(**given, softcap=3.0)[0]
    if operation == "attention, used":
        return reference_varlen(**given, dropout_p=0.25)[0]
    qkv = {name: given[name] for name in "qkv"}
    if operation == "attention, functions":
        return reference_varlen(**qkv, **functions_of(given["table"], given["ids"]))[0]
    seen = seen_blocks(given)
    return reference_varlen(**qkv, mask_mod=lambda b, h, i, j: seen[i, j])[0]


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name in TRUTHS])
def test_results_of_plain_tensors_are_right(operation: str) -> None:
    """The results of plain tensors are compared with float64, and all other kinds with them."""
    given = OPERATIONS[operation]
    for seed in (1, 2, 3):
        found = given.call(**given.make(seed))[0]
        expected = truth(operation, given.make(seed))
        torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2)
