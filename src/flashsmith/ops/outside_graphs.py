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
        disabled: list[Any] = []

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if "torch._dynamo" not in sys.modules:
                return function(*arguments, **keywords)
            if not disabled:
                disabled.append(torch.compiler.disable(function, reason=reason))  # type: ignore[no-untyped-call]
            return disabled[0](*arguments, **keywords)

        # What torch.compiler.disable sets, by which dynamo knows such a function.
        call._torchdynamo_disable = True  # type: ignore[attr-defined]
        call._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate
