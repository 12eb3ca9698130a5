"""Bounds of an expression over ranges of its inputs, which hold for a whole block.

Bounds are tensors, so that many blocks are bounded at once. They are sound but may be wide: an
undecided bool is [0, 1]; an integer that may wrap or has no bound rule may be any integer; a float
with an infinite bound may be any float, including NaN.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from flashsmith.mods.evaluate import DTYPES, apply
from flashsmith.mods.expression import INT_MAX, INT_MIN, Node
from flashsmith.mods.operations import Kind
from flashsmith.mods.ranges import RangeTable
from flashsmith.mods.trace import Mods


@dataclass(frozen=True)
class Interval:
    """A range that includes both ends: int64 for bools and integers, float32 for floats."""

    low: torch.Tensor
    high: torch.Tensor

    @classmethod
    def point(cls, value: torch.Tensor) -> Interval:
        value = value if value.is_floating_point() else value.long()
        return cls(value, value)

    @property
    def is_point(self) -> torch.Tensor:
        return self.low == self.high

    @property
    def is_finite(self) -> torch.Tensor:
        return self.low.isfinite() & self.high.isfinite()

    def corners(
        self, other: Interval, of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> Interval:
        """Returns the range of a function that is monotonic in each of two arguments."""
        ends = [of(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        low, high = ends[0], ends[0]
        for end in ends[1:]:
            low, high = torch.minimum(low, end), torch.maximum(high, end)
        return Interval(low, high)

    def ends(
        self, other: Interval, of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> Interval:
        """Returns the range of a function that increases with both arguments."""
        return Interval(of(self.low, other.low), of(self.high, other.high))

    def where(self, condition: torch.Tensor, other: Interval) -> Interval:
        return Interval(
            torch.where(condition, self.low, other.low),
            torch.where(condition, self.high, other.high),
        )


class Bounds:
    """Bounds of one value of an expression; caches range tables of the captured tensors."""

    def __init__(self, mods: Mods, root: int) -> None:
        self._mods = mods
        self._root = root
        self._places = mods.expression.needed_for(root)
        self._tables: dict[tuple[int, tuple[int | None, ...]], RangeTable] = {}

    def of(self, inputs: Mapping[str, Interval]) -> Interval:
        """Returns the bounds for inputs whose ends broadcast with each other."""
        device = next(iter(inputs.values())).low.device
        found: dict[int, Interval] = {}
        for place in self._places:
            node = self._mods.expression.nodes[place]
            operands = [found[operand] for operand in node.operands]
            if node.operation == "input":
                found[place] = inputs[str(node.value)]
            elif node.operation == "constant":
                dtype = torch.float32 if node.kind is Kind.FLOAT else torch.int64
                found[place] = Interval.point(torch.tensor(node.value, dtype=dtype, device=device))
            elif node.operation == "load":
                found[place] = self._load(node, operands)
            else:
                kinds = [self._mods.expression.nodes[operand].kind for operand in node.operands]
                found[place] = _bound(node, operands, kinds)
        return found[self._root]

    def _load(self, node: Node, indices: list[Interval]) -> Interval:
        k = int(node.value or 0)
        buffer = self._mods.buffers[k]
        inside = [_inside(i, size) for i, size in zip(indices, buffer.shape, strict=True)]
        # An index that is one number for all blocks, such as b or h, is fixed.
        fixed = tuple(
            int(i.low) if i.low.numel() == i.high.numel() == 1 and bool(i.is_point) else None
            for i in inside
        )
        if (k, fixed) not in self._tables:
            self._tables[k, fixed] = RangeTable(
                buffer[tuple(slice(None) if i is None else i for i in fixed)]
            )
        open_indices = [i for i, number in zip(inside, fixed, strict=True) if number is None]
        return Interval(*self._tables[k, fixed].bounds([(i.low, i.high) for i in open_indices]))


def _inside(index: Interval, size: int) -> Interval:
    """Returns the elements that an index may mean: negative ones count from the end."""
    negative = index.high < 0
    shift = torch.where(negative, size, 0)
    low, high = ((end + shift).clamp(0, size - 1) for end in (index.low, index.high))
    both = (index.low < 0) & ~negative
    return Interval(low.where(~both, 0), high.where(~both, size - 1))


def _bound(node: Node, operands: list[Interval], kinds: list[Kind]) -> Interval:
    followed = (_BOUNDS | _BOUNDS_OF_KIND[node.kind]).get(node.operation)
    are_points = functools.reduce(operator.and_, (operand.is_point for operand in operands))
    bound = _any(node.kind, are_points)
    if followed:
        bound = _checked(node.kind, followed(*operands))
        if not (are_points & ~bound.is_point).any():
            return bound
    # An operation without a bound rule still has a value if each operand has one value.
    values = [each.low.to(DTYPES[kind]) for each, kind in zip(operands, kinds, strict=True)]
    return Interval.point(apply(node, values)).where(are_points, bound)


def _any(kind: Kind, like: torch.Tensor) -> Interval:
    if kind is Kind.FLOAT:
        ends: tuple[float, float] = (float("-inf"), float("inf"))
    else:
        ends = (0, 1) if kind is Kind.BOOL else (INT_MIN, INT_MAX)
    dtype = torch.float32 if kind is Kind.FLOAT else torch.int64
    low, high = (torch.full_like(like, end, dtype=dtype) for end in ends)
    return Interval(low, high)


def _checked(kind: Kind, bound: Interval) -> Interval:
    """Returns the bound, or the full range if an integer may wrap or a float may be NaN or
    infinite."""
    if kind is Kind.BOOL:
        return bound
    fits = bound.is_finite
    if kind is Kind.INT:
        fits = (bound.low >= INT_MIN) & (bound.high <= INT_MAX)
    return bound.where(fits, _any(kind, fits))


# ---- what is followed ----


def _divided(
    a: Interval, b: Interval, by: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], kind: Kind
) -> Interval:
    """Returns the range of a quotient, which is monotonic if the divisor keeps its sign."""
    one_sign = (b.low > 0) | (b.high < 0)
    divisor = Interval(b.low.where(one_sign, 1), b.high.where(one_sign, 1))
    return a.corners(divisor, by).where(one_sign, _any(kind, one_sign))


def _remainder(a: Interval, b: Interval) -> Interval:
    positive = b.low > 0
    divisor = b.low.where(positive, 1)
    same = b.is_point & (a.low.floor_divide(divisor) == a.high.floor_divide(divisor))
    whole = Interval(torch.zeros_like(b.high), b.high - 1)
    part = Interval(a.low.remainder(divisor), a.high.remainder(divisor))
    return part.where(same, whole).where(positive, _any(Kind.INT, positive))


def _abs(a: Interval) -> Interval:
    away = torch.maximum(a.low, -a.high).clamp(min=0)
    return Interval(away, torch.maximum(-a.low, a.high))


def _le(a: Interval, b: Interval) -> Interval:
    return _decided(a, b, a.high <= b.low, a.low > b.high)


def _lt(a: Interval, b: Interval) -> Interval:
    return _decided(a, b, a.high < b.low, a.low >= b.high)


def _eq(a: Interval, b: Interval) -> Interval:
    equal = a.is_point & b.is_point & (a.low == b.low)
    return _decided(a, b, equal, (a.high < b.low) | (a.low > b.high))


def _decided(a: Interval, b: Interval, yes: torch.Tensor, no: torch.Tensor) -> Interval:
    known = a.is_finite & b.is_finite
    return Interval((yes & known).long(), (~(no & known)).long())


def _not(a: Interval) -> Interval:
    return Interval(1 - a.high, 1 - a.low)


def _both_bits(a: Interval, b: Interval) -> Interval:
    """Returns the range of a & b: at most either operand if both are non-negative, else any."""
    positive = (a.low >= 0) & (b.low >= 0)
    bits = Interval(torch.zeros_like(a.low), torch.minimum(a.high, b.high))
    return bits.where(positive, _any(Kind.INT, positive))


def _where(condition: Interval, yes: Interval, no: Interval) -> Interval:
    either = Interval(torch.minimum(yes.low, no.low), torch.maximum(yes.high, no.high))
    return yes.where(condition.low == 1, no.where(condition.high == 0, either))


def _monotonic(name: str) -> Callable[[Interval], Interval]:
    function = getattr(torch, name)
    return lambda a: Interval(function(a.low), function(a.high))


def _to_int(a: Interval) -> Interval:
    if not a.low.is_floating_point():
        return a
    # As a 64-bit integer, a value that does not fit into 32 bits is noticed.
    low, high = (end.clamp(-(2.0**40), 2.0**40).long() for end in (a.low, a.high))
    return Interval(low, high)


def _to_bool(a: Interval) -> Interval:
    never_zero = (a.low > 0) | (a.high < 0)
    always_zero = (a.low == 0) & (a.high == 0)
    return Interval(never_zero.long(), (~always_zero).long())


def _isnan(a: Interval) -> Interval:
    return Interval(torch.zeros_like(a.low).long(), (~a.is_finite).long())


_BOUNDS: dict[str, Callable[..., Interval]] = {
    "add": lambda a, b: Interval(a.low + b.low, a.high + b.high),
    "sub": lambda a, b: Interval(a.low - b.high, a.high - b.low),
    "mul": lambda a, b: a.corners(b, torch.mul),
    "minimum": lambda a, b: a.ends(b, torch.minimum),
    "maximum": lambda a, b: a.ends(b, torch.maximum),
    "clamp_min": lambda a, b: a.ends(b, torch.maximum),
    "clamp_max": lambda a, b: a.ends(b, torch.minimum),
    "neg": lambda a: Interval(-a.high, -a.low),
    "abs": _abs,
    "le": _le,
    "lt": _lt,
    "eq": _eq,
    "ne": lambda a, b: _not(_eq(a, b)),
    "where": _where,
    "detach": lambda a: a,
    "to_float": lambda a: Interval(a.low.float(), a.high.float()),
    "to_int": _to_int,
    "to_bool": _to_bool,
    "isnan": _isnan,
    "isinf": _isnan,
    **{name: _monotonic(name) for name in ("sign", "floor", "ceil", "round", "trunc")},
}
# These rules depend on the kind of the result.
_BOUNDS_OF_KIND: dict[Kind, dict[str, Callable[..., Interval]]] = {
    Kind.BOOL: {
        "bitwise_and": lambda a, b: a.ends(b, torch.bitwise_and),
        "bitwise_or": lambda a, b: a.ends(b, torch.bitwise_or),
        "bitwise_not": _not,
    },
    Kind.INT: {
        "floor_divide": lambda a, b: _divided(a, b, torch.floor_divide, Kind.INT),
        "remainder": _remainder,
        "bitwise_and": _both_bits,
    },
    Kind.FLOAT: {"div": lambda a, b: _divided(a, b, torch.div, Kind.FLOAT)},
}
