"""A captured tensor that is not indexed in all its dimensions is refused with a clear message, in
whatever expression it stands."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashsmith.errors import TracingError
from flashsmith.mods.trace import trace

TABLE = torch.randn(3, 5)
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift",
          "rshift", "lt", "le", "gt", "ge")  # fmt: skip


@pytest.mark.parametrize("is_left", [True, False])
@pytest.mark.parametrize("other", [2, "score"], ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_operators_are_refused(name: str, other: Any, is_left: bool) -> None:
    apply: Callable[[Any, Any], Any] = getattr(operator, name)

    def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        beside = score if other == "score" else other
        return apply(TABLE[h], beside) if is_left else apply(beside, TABLE[h])

    with pytest.raises(TracingError, match="index all of a captured tensor's dimensions: 1 are"):
        trace(score_mod)


def test_its_negative_is_refused() -> None:
    with pytest.raises(TracingError, match="index all of a captured tensor's dimensions: 1 are"):
        trace(lambda score, b, h, q, k: -TABLE[h])
