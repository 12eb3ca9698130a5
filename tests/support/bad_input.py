"""Cases of bad input: one change to good arguments, and the error that it must cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

Arguments = dict[str, Any]
MARK = 7.0  # fills o before a call


@dataclass(frozen=True)
class Case:
    name: str
    change: Callable[[Arguments], Arguments]
    error: type[Exception]
    words: tuple[str, ...]  # in the message

    def __str__(self) -> str:
        return self.name


def case(
    name: str, change: Callable[[Arguments], Arguments], error: type[Exception], *words: str
) -> Case:
    return Case(name, change, error, words)


def each(
    names: str,
    title: str,
    change: Callable[[torch.Tensor], Any],
    error: type[Exception],
    *words: str,
) -> list[Case]:
    """Returns a case for every tensor in ``names``; each message must begin with the name."""
    return [
        case(f"{n} {title}", lambda a, n=n: {n: change(a[n])}, error, f"{n} ", *words)
        for n in names
    ]


def assert_refused(call: Callable[..., Any], arguments: Arguments, bad: Case) -> None:
    """Asserts that the error comes with its words, and that o keeps its content."""
    changed = arguments | bad.change(arguments)
    with pytest.raises(bad.error) as caught:
        call(**changed)
    message = str(caught.value)
    assert all(word in message for word in bad.words), message
    if changed["o"] is arguments["o"]:
        assert (arguments["o"] == MARK).all()


def all_tensors(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[Arguments], Arguments]:
    return lambda a: {n: change(a[n]) for n in "qkvo"}


def zeros(*shape: int, dtype: torch.dtype = torch.float16) -> Callable[[Arguments], Arguments]:
    return all_tensors(lambda _: torch.zeros(shape, dtype=dtype))


def repeated(*shape: int) -> Callable[[Arguments], Arguments]:
    """Returns a change of all four tensors to a shape too large to store, by strides of 0."""
    return all_tensors(lambda t: t[:1, :1, :1].expand(shape))


def longer(dim: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: torch.cat([t, t], dim)


def misaligned(t: torch.Tensor) -> torch.Tensor:
    return torch.zeros(t.numel() + 1, dtype=t.dtype)[1:].view(t.shape)


def odd_stride(dim: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns a change that adds 4 elements (8 bytes) of padding in a dimension."""

    def change(t: torch.Tensor) -> torch.Tensor:
        strides = list(t.stride())
        strides[dim] += 4
        return torch.zeros(2 * t.numel(), dtype=t.dtype).as_strided(t.shape, strides)

    return change
