"""torch's context_parallel over processes, with flashsmith's kernels on the emulator."""

from __future__ import annotations

import pytest
import torch

from flashsmith.reference import compare
from support.differentiation import gradients_of
from support.ring import Results, run_example
from support.trained import build_for_training

SHAPE = (2, 2, 40, 16)
ARGUMENTS = (
    "--device=cpu", "--dtype=float16", "--batch=2", "--heads=2", "--seq-len=40", "--d-head=16",
    "--times=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, list[str]]:
    build_for_training("causal+padded", "padded")
    return run_example(tmp_path_factory.mktemp("processes"), 2, *ARGUMENTS)


def test_two_processes_compute_what_one_does(example: tuple[Results, list[str]]) -> None:
    """Whichever way keys and values are exchanged, the error of o and of the gradients is at most
    twice that of plain torch in the same dtype."""
    results, _ = example
    assert list(results) == ["alone", "allgather", "alltoall"]
    torch.manual_seed(0)
    *tensors, do = (torch.randn(SHAPE, dtype=torch.float16) for _ in range(4))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    doubles = [t.double() for t in tensors]
    exact = [attend(*doubles), *gradients_of(attend, doubles, [do])]
    low = [attend(*tensors), *gradients_of(attend, tensors, [do])]
    for way, found in results.items():
        for name, own, right, rough in zip("oqkv", found, exact, low, strict=True):
            difference = compare(own, right, rough.double())
            assert difference.ok, f"{way}, {name}: {difference}"
    for name, one, other in zip("oqkv", results["alone"], results["allgather"], strict=True):
        assert not torch.equal(one, other), f"{name} was not combined from parts"


def test_it_says_how_far_from_one_process_that_is(example: tuple[Results, list[str]]) -> None:
    _, (title, *rows) = example
    assert title.split() == ["ms", "MiB", "o", "dq", "dk", "dv"]
    for way, row in zip(("alone", "allgather", "alltoall"), rows, strict=True):
        name, milliseconds, mebibytes, *differences = row.split()
        assert name == way and float(milliseconds) > 0 and mebibytes == "0"
        assert all(float(each) < 2e-3 for each in differences)
