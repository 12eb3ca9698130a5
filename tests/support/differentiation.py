"""Compares gradients of a function with the gradients of the same in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from flashsmith.reference import compare

Function = Callable[..., Any]


def gradients_of(
    function: Function, tensors: Sequence[torch.Tensor], do: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Returns the gradients of the results' products with ``do``, by the tensors."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    given = [each.to(result.dtype) for each, result in zip(do, results, strict=True)]
    return torch.autograd.grad(results, leaves, given)


def assert_gradients(
    ours: Function,
    plain: Function,
    *tensors: torch.Tensor,
    shapes: Sequence[Sequence[int]] | None = None,
) -> None:
    """Asserts that errors against ``plain`` in float64 are at most twice those of ``plain`` itself
    in low precision.

    shapes: The shapes of the results; None: one result in the first tensor's shape.
    """
    do = [torch.randn(*shape).to(tensors[0]) for shape in shapes or [tensors[0].shape]]
    found = gradients_of(ours, tensors, do)
    exact = gradients_of(plain, [t.double() for t in tensors], do)
    low = gradients_of(plain, tensors, do)
    for i, (t, own, right, rough) in enumerate(zip(tensors, found, exact, low, strict=True)):
        assert own.shape == t.shape and own.dtype == t.dtype
        assert right.abs().max() > 0
        difference = compare(own, right, rough.double())
        assert difference.ok, f"tensor {i}: {difference}"
