"""Functions that torch.compile leaves alone."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def outside_of_graphs(reason: str) -> Callable[[Function], Function]:
    """``torch.compiler.disable``, which imports all of dynamo: here it is asked for by the first
    call after somebody else has imported that.

    Args:
        reason: What dynamo says of the graph break, and under ``fullgraph=True`` of its error.
    """

    def decorate(function: Function) -> Function:
        @functools.cache
        def disabled() -> Any:
            return torch.compiler.disable(function, reason=reason)  # type: ignore[no-untyped-call]

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            is_there = "torch._dynamo" in sys.modules
            return (disabled() if is_there else function)(*arguments, **keywords)

        # What torch.compiler.disable sets, by which dynamo knows such a function.
        call._torchdynamo_disable = True  # type: ignore[attr-defined]
        call._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate
