"""The computation of a user's score_mod and mask_mod: a list of values, each from earlier ones.

Equal values occur once. The text of an expression is canonical and can be parsed: it has no names
of the user's code, no shapes of tensors, and no unused values.
"""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass

from flashsmith.mods.operations import CONVERSIONS, OPERATIONS, Kind

# The arguments of the two functions: the score and its position.
INPUTS = {"score": Kind.FLOAT, "b": Kind.INT, "h": Kind.INT, "q": Kind.INT, "kv": Kind.INT}

# The element types of tensors, and their kinds in an expression.
ELEMENTS = {
    "float32": Kind.FLOAT,
    "float16": Kind.FLOAT,
    "bfloat16": Kind.FLOAT,
    "int32": Kind.INT,
    "bool": Kind.BOOL,
}
MAX_BUFFERS = 8
MAX_DIMENSIONS = 4

HASH_DIGITS = 12

INT_MIN, INT_MAX = -(2**31), 2**31 - 1  # all integers of an expression have 32 bits


@dataclass(frozen=True)
class Buffer:
    """A tensor that a function reads. Its sizes and strides are arguments, not part of the
    expression."""

    element: str  # of ELEMENTS
    dimensions: int

    def __str__(self) -> str:
        return f"{self.element}[{self.dimensions}]"


@dataclass(frozen=True)
class Node:
    """A value: an operation on other values, which are named by their indices in the list.

    operation: One of OPERATIONS, or "input", "constant", "load", "where".
    value: An input's name, a constant, or the index of the loaded buffer.
    """

    operation: str
    kind: Kind
    operands: tuple[int, ...] = ()
    value: str | int | float | None = None


@dataclass(frozen=True)
class Expression:
    """Both functions, over one list of values.

    score: The index of the changed score; None: unchanged.
    visible: The index of whether a query sees a key; None: every query does.
    """

    nodes: tuple[Node, ...]
    score: int | None
    visible: int | None
    buffers: tuple[Buffer, ...] = ()

    @functools.cached_property
    def text(self) -> str:
        lines = [" ".join(("buffers", *map(str, self.buffers)))]
        lines += map(_write, self.nodes)
        lines += [f"{name} {place}" for name, place in self.roots.items()]
        return "".join(f"{line}\n" for line in lines)

    @functools.cached_property
    def hash(self) -> str:
        """The first 12 hexadecimal digits of the text's SHA-256."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:HASH_DIGITS]

    @property
    def number(self) -> int:
        """The hash as a number; never 0, which means no expression."""
        return int(self.hash, 16) or 1

    @property
    def roots(self) -> dict[str, int]:
        places = {"score": self.score, "visible": self.visible}
        return {name: place for name, place in places.items() if place is not None}

    @classmethod
    def from_text(cls, text: str) -> Expression:
        """Returns the expression with this text. Raises ValueError for any other text."""
        try:
            first, *lines = text.splitlines()
            word, *buffers = first.split()
            if word != "buffers":
                raise ValueError(first)
            roots = dict(line.split() for line in lines if line.startswith(("score ", "visible ")))
            nodes = tuple(map(_read, lines[: len(lines) - len(roots)]))
            places = {name: int(place) for name, place in roots.items()}
            read = tuple(map(_buffer, buffers))
            found = cls(nodes, places.get("score"), places.get("visible"), read)
            found._check()
        except (ValueError, KeyError, IndexError) as error:
            raise ValueError(f"this is no expression: {error}") from None
        if found.text != text:
            raise ValueError("this is no canonical expression")
        return found

    def _check(self) -> None:
        """Raises ValueError for an expression that tracing cannot produce and C++ cannot
        express."""
        if len(self.buffers) > MAX_BUFFERS:
            raise ValueError(f"{len(self.buffers)} buffers")
        for place, node in enumerate(self.nodes):
            if not all(0 <= operand < place for operand in node.operands):
                raise ValueError(f"v{place} is made of what does not stand before it")
            kinds = tuple(self.nodes[operand].kind for operand in node.operands)
            if not self._is_sound(node, kinds):
                raise ValueError(f"v{place} is no {node.operation}: {_write(node)}")
        for name, place in self.roots.items():
            kind = Kind.FLOAT if name == "score" else Kind.BOOL
            if not (0 <= place < len(self.nodes) and self.nodes[place].kind is kind):
                raise ValueError(f"{name} is v{place}")

    def _is_sound(self, node: Node, kinds: tuple[Kind, ...]) -> bool:
        """Returns whether a node is well-formed; ``kinds`` are the kinds of its operands."""
        value = node.value
        if node.operation == "input":
            return not kinds and node.kind is INPUTS[str(value)]
        if node.operation == "constant":
            ranges = {Kind.BOOL: (0, 1), Kind.INT: (INT_MIN, INT_MAX)}
            minimum, maximum = ranges.get(node.kind, (-math.inf, math.inf))
            number = float(value or 0)
            return not kinds and (number != number or minimum <= number <= maximum)
        if node.operation == "load":
            buffer = int(value or 0)
            if not 0 <= buffer < len(self.buffers):
                return False
            of = self.buffers[buffer]
            return node.kind is ELEMENTS[of.element] and kinds == (Kind.INT,) * of.dimensions
        if node.operation == "where":
            return kinds == (Kind.BOOL, node.kind, node.kind)
        operation = OPERATIONS[node.operation]
        if len(kinds) != operation.arity:
            return False
        if node.operation in CONVERSIONS.values():
            return node.kind is operation.gives
        common = kinds[0]
        gives = common if operation.gives is None else operation.gives
        return (
            len(set(kinds)) == 1
            and operation.lowest <= common <= operation.highest
            and node.kind is gives
        )

    def needed_for(self, root: int) -> list[int]:
        """Returns the indices of all values that a value depends on, in order; its own is the
        last."""
        needed = {root}
        for place in range(root, -1, -1):
            if place in needed:
                needed.update(self.nodes[place].operands)
        return sorted(needed)

    def inputs_of(self, root: int) -> set[str]:
        """Returns the names of the inputs that a value depends on."""
        nodes = (self.nodes[place] for place in self.needed_for(root))
        return {str(node.value) for node in nodes if node.operation == "input"}


def canonical(
    nodes: list[Node], score: int | None, visible: int | None, buffers: list[Buffer]
) -> tuple[Expression, list[int]]:
    """Returns the expression of the used values, in the order of their use, and its buffers'
    indices."""
    roots = (score, visible)
    places: dict[int, int] = {}
    waiting = [root for root in reversed(roots) if root is not None]
    while waiting:
        missing = [operand for operand in nodes[waiting[-1]].operands if operand not in places]
        if missing:
            waiting += reversed(missing)
        else:
            places.setdefault(waiting.pop(), len(places))
    loads = (nodes[place].value for place in places if nodes[place].operation == "load")
    used = [int(k or 0) for k in dict.fromkeys(loads)]
    kept = tuple(_moved(nodes[place], places, used) for place in places)
    new_score, new_visible = (None if root is None else places[root] for root in roots)
    return Expression(kept, new_score, new_visible, tuple(buffers[k] for k in used)), used


def _moved(node: Node, places: dict[int, int], used: list[int]) -> Node:
    value = used.index(int(node.value or 0)) if node.operation == "load" else node.value
    operands = tuple(places[operand] for operand in node.operands)
    return Node(node.operation, node.kind, operands, value)


def _write(node: Node) -> str:
    value = node.value
    if node.kind is Kind.FLOAT and isinstance(value, float):
        value = float(value).hex()
    words = [node.operation, node.kind.text, *([] if value is None else [str(value)])]
    return " ".join([*words, *(f"v{operand}" for operand in node.operands)])


def _read(line: str) -> Node:
    operation, kind_text, *words = line.split()
    kind = Kind[kind_text.upper()]
    operands = tuple(int(word[1:]) for word in words if word.startswith("v"))
    value: str | int | float | None = None
    if operation == "input":
        (value,) = words
        INPUTS[value]  # an unknown name is a KeyError
    elif operation == "constant":
        value = float.fromhex(words[0]) if kind is Kind.FLOAT else int(words[0])
    elif operation == "load":
        value = int(words[0])
    elif operation != "where":
        OPERATIONS[operation]
    return Node(operation, kind, operands, value)


def _buffer(text: str) -> Buffer:
    element, _, dimensions = text.rstrip("]").partition("[")
    ELEMENTS[element]
    if not 0 <= int(dimensions) <= MAX_DIMENSIONS:
        raise ValueError(f"{dimensions} dimensions")
    return Buffer(element, int(dimensions))
