"""Makes calls, described as data, one after the other in a process; records results bit by bit."""

from __future__ import annotations

import hashlib
import importlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

Tensors = Mapping[str, torch.Tensor]


class Call(NamedTuple):
    """An operation, by the name of its module in ``support``, and the chosen value of each thing in
    which its calls may differ."""

    operation: str
    chosen: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.chosen)


class Bits(NamedTuple):
    """All properties of a tensor; its contents as a hash."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool
    contents: str

    @classmethod
    def of(cls, t: torch.Tensor) -> Bits:
        flat = t.detach().contiguous().flatten().view(torch.uint8)
        digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16]
        return cls(str(t.dtype), tuple(t.shape), t.stride(), t.requires_grad, digest)


class Outcome(NamedTuple):
    """A call's result or error, and the contents of its arguments afterwards."""

    returned: Any
    error: str | None
    arguments: tuple[tuple[str, Bits], ...]


@dataclass
class World:
    """The things that may outlive a call: memory, and objects that functions refer to."""

    objects: dict[str, Any] = field(default_factory=dict)
    made: dict[str, torch.Tensor] = field(default_factory=dict)

    def kept(self, name: str, make: Any) -> Any:
        """Returns the object of a name: an earlier call's, or a new one."""
        if name not in self.objects:
            with torch.inference_mode(False):  # later calls may write it in other modes
                self.objects[name] = make()
        return self.objects[name]

    def place(self, name: str, values: torch.Tensor, layout: str = "contiguous") -> torch.Tensor:
        """Returns a tensor of ``values`` in the memory of its name, in a layout."""
        size, strides = LAYOUTS[layout].strides(values.shape)
        memory = self.kept(f"memory of {name}", lambda: torch.empty(_MAX_BYTES, dtype=torch.uint8))
        elements = memory[: size * values.element_size()].view(values.dtype)
        t = elements[LAYOUTS[layout].first :].as_strided(values.shape, strides)
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
        """Returns numbers that depend on a name, a shape and ``contents`` alone."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {contents}".encode()))
        return self.place(name, torch.randn(*shape, generator=generator).to(dtype), layout)


_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor's elements in memory.

    swapped: Whether the third-to-last dimension is stored inside the second-to-last.
    more: Number of elements between two rows.
    first, step: Offset of the first element, and distance between elements of a row.
    """

    swapped: bool = False
    more: int = 0
    first: int = 0
    step: int = 1

    def strides(self, shape: Sequence[int]) -> tuple[int, list[int]]:
        """Returns the number of elements of memory that are needed, and the strides."""
        order = list(range(len(shape)))
        if self.swapped and len(shape) > 2:
            order[-3], order[-2] = order[-2], order[-3]
        strides, step = [0] * len(shape), self.step
        for place, d in reversed(list(enumerate(order))):
            strides[d] = step
            step *= max(shape[d], 1)
            if place == len(order) - 1:
                step += self.more
        return self.first + step, strides


LAYOUTS = {
    "contiguous": Layout(),
    "heads first": Layout(swapped=True),
    "long rows": Layout(more=16),
    "16 bytes on": Layout(first=8),  # in elements of 16 bits
    "8 bytes on": Layout(first=4),
    "an element on": Layout(first=1),
    "odd rows": Layout(more=1),
    "every second": Layout(step=2),
}


def make_calls(calls: Sequence[tuple[Call, bool]]) -> list[Outcome]:
    """Returns the outcomes of calls that one process makes in this order; beside each call, whether
    it keeps earlier calls' tensors and functions, with other contents."""
    world, outcomes = World(), []
    for call, keeps in calls:
        if not keeps:
            world.objects = {}
        outcomes.append(_make(call, world))
    return outcomes


def _make(call: Call, world: World) -> Outcome:
    operation = importlib.import_module(f"support.{call.operation}")
    world.made = {}
    torch.manual_seed(0)
    returned = error = None
    try:
        returned = _seen(operation.make(world, dict(call.chosen)))
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    return Outcome(returned, error, tuple((name, Bits.of(t)) for name, t in world.made.items()))


def _seen(returned: Any) -> Any:
    if isinstance(returned, torch.Tensor):
        return Bits.of(returned)
    if isinstance(returned, tuple | list):
        return tuple(map(_seen, returned))
    return returned
