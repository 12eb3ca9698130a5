"""Ways in which torch lets a program write values into a tensor, with a new version of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from random import Random

import torch

Way = Callable[[torch.Tensor, torch.Tensor], object]


def _step(t: torch.Tensor, other: torch.Tensor) -> None:
    """Writes values by an optimiser's step; by a copy if the tensor cannot be optimised."""
    if t.is_floating_point() and t.is_leaf:
        t.grad = (t - other).to(t.dtype)
        torch.optim.SGD([t], lr=1.0).step()
        t.grad = None
    else:
        t.copy_(other)


def _load(t: torch.Tensor, other: torch.Tensor) -> None:
    """Writes values as ``load_state_dict`` does to a buffer."""
    module = torch.nn.Module()
    module.register_buffer("t", t)
    module.load_state_dict({"t": other})


def _infer(t: torch.Tensor, other: torch.Tensor) -> None:
    with torch.inference_mode():
        t.copy_(other)


# Each way takes a tensor, and other values of its shape and dtype.
VALUES: dict[str, Way] = {
    "copy_": lambda t, other: t.copy_(other),
    "add_": lambda t, other: t.add_(other - t),
    "sub_ of a view": lambda t, other: t.view(-1).sub_((t - other).view(-1)),
    "t[...] =": lambda t, other: t.__setitem__(..., other),
    "t[i] =": lambda t, other: [t.__setitem__(i, other[i]) for i in range(len(t))],
    "zero_ and add_": lambda t, other: t.zero_().add_(other),
    "fill_ and copy_": lambda t, other: t.fill_(1).copy_(other),
    "masked_scatter_": lambda t, other: t.masked_scatter_(torch.ones_like(t).bool(), other),
    "index_copy_": lambda t, other: t.index_copy_(0, torch.arange(len(t)), other),
    "out=": lambda t, other: torch.add(other, 0, out=t),
    "detach and copy_": lambda t, other: t.detach().copy_(other),
    "a foreach": lambda t, other: torch._foreach_copy_([t], [other]),
    "in inference_mode": _infer,
    "a step of an optimiser": _step,
    "load_state_dict": _load,
}
# These give the tensor another shape, or other memory.
SHAPES: dict[str, Way] = {
    "unsqueeze_": lambda t, other: t.unsqueeze_(0),
    "transpose_": lambda t, other: t.transpose_(0, -1),
    "resize_": lambda t, other: t.resize_((*t.shape[:-1], max(t.shape[-1] - 1, 1))),
    "set_": lambda t, other: t.set_(other),
}
WAYS = VALUES | SHAPES


def change(t: torch.Tensor, other: torch.Tensor, way: str) -> None:
    """Writes ``other`` into t, or changes it otherwise, as torch's autograd can see."""
    if t.ndim == 0:
        way = "copy_"
    before = t._version
    with torch.no_grad():
        WAYS[way](t, other)
    assert t._version > before, way


def all_ways(random: Random) -> Iterator[str]:
    """Returns an endless iterator over the ways, from a random one on."""
    first = random.randrange(len(WAYS))
    names = [*WAYS]
    return cycle(names[first:] + names[:first])
