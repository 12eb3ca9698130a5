"""Every operator means in C++ what it means in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashsmith.mods import OPERATIONS
from flashsmith.mods.evaluate import evaluate
from flashsmith.mods.trace import Mods, trace
from support.mods import INPUTS, Policies
from support.score_mods import FLAGS, IDS, SCORES, WINDOW, rows

# Each function is used as a mask_mod.
MASKS: dict[str, Callable[..., Any]] = {
    "causal": lambda b, h, q, k: q >= k,
    "comparisons": lambda b, h, q, k: ((q < k) ^ (q <= 0)) | (k == 2) & (q != 1) & (k < 3),
    "logical": lambda b, h, q, k: torch.logical_and(q, torch.logical_not(k)).logical_xor(q > 2),
    "or": lambda b, h, q, k: torch.logical_or(q % 2 == 0, ~(k > 0)),
    "documents": lambda b, h, q, k: IDS[q % 64] == IDS[k % 64],
    "flags": lambda b, h, q, k: FLAGS[q % 64] & FLAGS[k % 64] | (h == 1),
    "a captured tensor compared": lambda b, h, q, k: (q - k).abs() <= WINDOW,
    "is": lambda b, h, q, k: torch.isnan(q / k) | torch.isinf(1 / k) & torch.isfinite(q.float()),
    "all": lambda b, h, q, k: True,
    "none": lambda b, h, q, k: torch.zeros((), dtype=torch.bool),
}


def traced() -> dict[str, Mods]:
    mods = {f"score {name}": trace(f) for name, f in SCORES.items()}
    return mods | {f"mask {name}": trace(None, f) for name, f in MASKS.items()}


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    return Policies(tmp_path_factory.mktemp("policies"), traced())


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_those_of_torch(policies: Policies, name: str) -> None:
    inputs = rows()
    found, visible = policies.run(f"score {name}", inputs)
    expected = torch.vmap(SCORES[name])(*(inputs[each] for each in INPUTS)).float()
    torch.testing.assert_close(found, expected, rtol=4e-6, atol=2e-6, equal_nan=True)
    assert visible.all()


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_those_of_torch(policies: Policies, name: str) -> None:
    inputs = rows()
    score, found = policies.run(f"mask {name}", inputs)
    mask = lambda *at: torch.as_tensor(MASKS[name](*at))  # noqa: E731
    assert found.equal(torch.vmap(mask)(*(inputs[each] for each in INPUTS[1:])))
    assert score.equal(inputs["score"])


@pytest.mark.parametrize("name", [*(f"score {n}" for n in SCORES), *(f"mask {n}" for n in MASKS)])
def test_the_evaluation_in_torch_is_that_of_the_kernel(policies: Policies, name: str) -> None:
    inputs = rows()
    score, visible = policies.run(name, inputs)
    mods = policies.mods[name]
    if mods.expression.score is not None:
        found = evaluate(mods, mods.expression.score, inputs)
        torch.testing.assert_close(score, found, rtol=4e-6, atol=2e-6, equal_nan=True)
    if mods.expression.visible is not None:
        found = evaluate(mods, mods.expression.visible, inputs)
        assert visible.equal(found.expand_as(visible))


def test_every_operation_is_tried() -> None:
    tried = {node.operation for mods in traced().values() for node in mods.expression.nodes}
    assert tried == {*OPERATIONS, "input", "constant", "load", "where"}
