"""Evaluates an expression over torch tensors: the kernel's computation for many scores at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from flashsmith.mods.expression import Node
from flashsmith.mods.operations import Kind
from flashsmith.mods.trace import Mods

Operation = Callable[..., torch.Tensor]

DTYPES = {Kind.BOOL: torch.bool, Kind.INT: torch.int32, Kind.FLOAT: torch.float32}


def evaluate(mods: Mods, root: int, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns the value at ``root`` for inputs that broadcast with each other, on their device."""
    device = next(iter(inputs.values())).device
    values: dict[int, torch.Tensor] = {}
    for place in mods.expression.needed_for(root):
        node = mods.expression.nodes[place]
        operands = [values[operand] for operand in node.operands]
        if node.operation == "input":
            values[place] = inputs[str(node.value)]
        elif node.operation == "constant":
            values[place] = torch.tensor(node.value, dtype=DTYPES[node.kind], device=device)
        elif node.operation == "load":
            loaded = mods.buffers[int(node.value or 0)]
            values[place] = load(loaded, operands).to(DTYPES[node.kind])
        else:
            values[place] = apply(node, operands)
    return values[root]


def apply(node: Node, operands: list[torch.Tensor]) -> torch.Tensor:
    own = _OF_INTEGERS if node.kind is Kind.INT else {}
    operation = own.get(node.operation) or _OPERATIONS.get(node.operation)
    return (operation or getattr(torch, node.operation))(*operands)


def load(buffer: torch.Tensor, indices: list[torch.Tensor]) -> torch.Tensor:
    """Returns the elements at indices; an index beyond the tensor is clamped to its edge, as in the
    kernel."""
    if not indices:
        return buffer
    sizes = zip(indices, buffer.shape, strict=True)
    inside = [i.where(i >= 0, i + size).clamp(0, size - 1).long() for i, size in sizes]
    return buffer[tuple(inside)]


def _by_zero(operation: Operation, quotient: Callable[[torch.Tensor], torch.Tensor]) -> Operation:
    """Returns an integer division with the kernel's quotient for zero divisors, where torch
    raises."""

    def apply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        # The computation has 64 bits, because the smallest 32-bit integer divided by -1 traps.
        result = operation(a.long(), b.where(b != 0, 1).long()).int()
        return result.where(b != 0, quotient(a))

    return apply


def _power(base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """Returns integer powers; torch does not define negative powers of integers."""
    power = torch.pow(base, exponent.clamp(min=0))
    odd = (exponent % 2 != 0) & (base == -1)
    fraction = torch.where(base.abs() == 1, torch.where(odd, -1, 1), 0)
    return torch.where(exponent < 0, fraction, power).int()


_OF_INTEGERS: dict[str, Operation] = {
    "floor_divide": _by_zero(torch.floor_divide, torch.zeros_like),
    "remainder": _by_zero(torch.remainder, lambda a: a),
    "fmod": _by_zero(torch.fmod, lambda a: a),
    "pow": _power,
}
_OPERATIONS: dict[str, Operation] = {
    "to_float": lambda x: x.float(),
    "to_int": lambda x: x.int(),
    "to_bool": lambda x: x.bool(),
}
