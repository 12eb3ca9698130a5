"""Calls as data, made one after the other in a process, and what became of each, to the bit."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

Tensors = Mapping[str, torch.Tensor]


class Call(NamedTuple):
    """An operation, by the name of its module in ``support``, and what is chosen of each thing that
    its calls may differ in."""

    operation: str
    chosen: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.chosen)


class Bits(NamedTuple):
    """All that can be told of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool
    contents: bytes

    @classmethod
    def of(cls, t: torch.Tensor) -> Bits:
        flat = (
            t.detach().contiguous().view(torch.uint8)
            if t.dim()
            else t.detach()[None].view(torch.uint8)
        )
        contents = flat.numpy().tobytes()
        return cls(str(t.dtype), tuple(t.shape), t.stride(), t.requires_grad, contents)


class Outcome(NamedTuple):
    """What a call returned or raised, and what its arguments held afterwards."""

    returned: Any
    error: str | None
    arguments: tuple[tuple[str, Bits], ...]


@dataclass
class World:
    """What may outlive a call: memory, and the objects that functions refer to."""

    objects: dict[str, Any] = field(default_factory=dict)
    made: dict[str, torch.Tensor] = field(default_factory=dict)

    def kept(self, name: str, make: Any) -> Any:
        """The object of a name: an earlier call's, or a new one."""
        if name not in self.objects:
            self.objects[name] = make()
        return self.objects[name]

    def place(self, name: str, values: torch.Tensor, layout: str = "contiguous") -> torch.Tensor:
        """``values`` in memory, laid out as asked for."""
        size = LAYOUTS[layout](values, None)
        memory = self.kept(f"memory of {name}", lambda: torch.empty(_MOST_BYTES, dtype=torch.uint8))
        needed = size * values.element_size()
        assert needed <= _MOST_BYTES, name
        t: torch.Tensor = LAYOUTS[layout](values, memory[:needed].view(values.dtype))
        t.copy_(values)
        self.made[name] = t
        return t

    def normal(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        contents: int = 0,
        layout: str = "contiguous",
    ) -> torch.Tensor:
        """Numbers that depend on a name, a shape and ``contents`` alone."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {contents}".encode()))
        return self.place(name, torch.randn(*shape, generator=generator).to(dtype), layout)


_MOST_BYTES = 1 << 20


def _strided(
    values: torch.Tensor,
    memory: torch.Tensor | None,
    order: Sequence[int],
    row: int,
    first: int,
    last: int = 1,
) -> Any:
    """A view of memory: dimensions in this order, rows of ``row`` elements more than they have."""
    sizes = [values.shape[d] for d in order]
    strides = [0] * values.ndim
    step = last
    for place, d in reversed(list(enumerate(order))):
        strides[d] = step
        step *= max(sizes[place], 1)
        if place == len(order) - 1:
            step += row
    if memory is None:
        return first + step
    return memory[first:].as_strided(values.shape, strides)


def _order(values: torch.Tensor, swapped: bool) -> list[int]:
    order = list(range(values.ndim))
    if swapped and values.ndim > 2:
        order[-3], order[-2] = order[-2], order[-3]
    return order


LAYOUTS: dict[str, Any] = {
    "contiguous": lambda v, m: _strided(v, m, _order(v, False), 0, 0),
    "heads first": lambda v, m: _strided(v, m, _order(v, True), 0, 0),
    "long rows": lambda v, m: _strided(v, m, _order(v, False), 16, 0),
    "16 bytes on": lambda v, m: _strided(v, m, _order(v, False), 0, 16 // v.element_size()),
    "8 bytes on": lambda v, m: _strided(v, m, _order(v, False), 0, 8 // v.element_size()),
    "an element on": lambda v, m: _strided(v, m, _order(v, False), 0, 1),
    "odd rows": lambda v, m: _strided(v, m, _order(v, False), 1, 0),
    "every second": lambda v, m: _strided(v, m, _order(v, False), 0, 0, 2),
}


def make_calls(calls: Sequence[tuple[Call, bool]]) -> list[Outcome]:
    """What becomes of calls that one process makes in this order; beside each, whether its
    tensors and functions are those of calls before, with other contents."""
    world, outcomes = World(), []
    for call, keeps in calls:
        if not keeps:
            world.objects = {}
        outcomes.append(_make(call, world))
    return outcomes


def _make(call: Call, world: World) -> Outcome:
    operations = __import__(f"support.{call.operation}", fromlist=["make"])
    world.made = {}
    torch.manual_seed(0)
    returned = error = None
    try:
        returned = _seen(operations.make(world, dict(call.chosen)))
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    return Outcome(returned, error, tuple((name, Bits.of(t)) for name, t in world.made.items()))


def _seen(returned: Any) -> Any:
    if isinstance(returned, torch.Tensor):
        return Bits.of(returned)
    if isinstance(returned, tuple | list):
        return tuple(map(_seen, returned))
    return returned
