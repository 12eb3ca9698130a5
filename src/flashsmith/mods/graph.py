"""Builds an expression value by value: converts operands, and shares equal values."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from flashsmith.mods.expression import INPUTS, INT_MAX, INT_MIN, Buffer, Expression, Node, canonical
from flashsmith.mods.operations import CONVERSIONS, OPERATIONS, Kind


class Graph:
    """The values of an expression by index. Raises ValueError, in words, for invalid operations."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.buffers: list[Buffer] = []
        self._places: dict[tuple[object, ...], int] = {}

    @classmethod
    def of(cls, expression: Expression) -> Graph:
        """Returns a graph that continues an expression, whose values and buffers keep their
        indices."""
        graph = cls()
        graph.buffers += expression.buffers
        for place, node in enumerate(expression.nodes):
            graph.nodes.append(node)
            graph._places.setdefault(_key(node), place)
        return graph

    def kind(self, place: int) -> Kind:
        return self.nodes[place].kind

    def input(self, name: str) -> int:
        return self._add(Node("input", INPUTS[name], (), name))

    def constant(self, value: bool | int | float) -> int:
        if isinstance(value, bool):
            return self._add(Node("constant", Kind.BOOL, (), int(value)))
        if isinstance(value, int):
            if not INT_MIN <= value <= INT_MAX:
                raise ValueError(f"{value} is no 32-bit integer, which all integers are here")
            return self._add(Node("constant", Kind.INT, (), value))
        return self._add(Node("constant", Kind.FLOAT, (), _float32(value)))

    def constant_value(self, place: int) -> bool | int | float | None:
        """Returns the constant at an index; None for any other value."""
        node = self.nodes[place]
        if node.operation != "constant" or node.value is None:
            return None
        return (bool, int, float)[node.kind](node.value)

    def buffer(self, buffer: Buffer) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def load(self, buffer: int, kind: Kind, indices: Sequence[int]) -> int:
        return self._add(Node("load", kind, tuple(indices), buffer))

    def apply(self, name: str, *operands: int) -> int:
        operation = OPERATIONS[name]
        kind = max(operation.lowest, *map(self.kind, operands))
        if kind > operation.highest:
            raise ValueError(f"{name} takes no {kind.text}")
        if name in CONVERSIONS.values():
            return self.convert(operands[0], Kind(operation.gives or 0))
        converted = tuple(self.convert(operand, kind) for operand in operands)
        gives = kind if operation.gives is None else operation.gives
        return self._add(Node(name, gives, converted))

    def where(self, condition: int, yes: int, no: int) -> int:
        if self.kind(condition) is not Kind.BOOL:
            raise ValueError(f"the condition is {self.kind(condition).text}; expected bool")
        kind = max(self.kind(yes), self.kind(no))
        values = (self.convert(yes, kind), self.convert(no, kind))
        return self._add(Node("where", kind, (condition, *values)))

    def convert(self, place: int, kind: Kind) -> int:
        if self.kind(place) is kind:
            return place
        value = self.constant_value(place)
        # A float out of range has no integer; the kernel's conversion defines the result.
        if value is not None and (kind is not Kind.INT or abs(value) <= INT_MAX):
            return self.constant((bool, int, float)[kind](value))
        return self._add(Node(CONVERSIONS[kind], kind, (place,)))

    def finish(self, score: int | None, visible: int | None) -> tuple[Expression, list[int]]:
        """Returns the expression, and the indices of the buffers that it reads."""
        return canonical(self.nodes, score, visible, self.buffers)

    def _add(self, node: Node) -> int:
        place = self._places.setdefault(_key(node), len(self.nodes))
        if place == len(self.nodes):
            self.nodes.append(node)
        return place


def _key(node: Node) -> tuple[object, ...]:
    """Returns a key of a node's text: as values, -0.0 equals 0.0 and NaN equals nothing."""
    return (node.operation, node.kind, node.operands, repr(node.value))


def _float32(value: float) -> float:
    """Rounds a number as torch does when it meets a float32 tensor."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
