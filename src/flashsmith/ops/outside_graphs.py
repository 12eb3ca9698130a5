"""Excludes functions from torch.compile's graphs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def outside_of_graphs(reason: str) -> Callable[[Function], Function]:
    """Applies ``torch.compiler.disable``, which imports all of dynamo, at the first call after
    other code has imported dynamo.

    Args:
        reason: The reason in dynamo's message of the graph break, or error with ``fullgraph=True``.
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

        # torch.compiler.disable sets these attributes, by which dynamo recognises the function.
        call._torchdynamo_disable = True  # type: ignore[attr-defined]
        call._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate
