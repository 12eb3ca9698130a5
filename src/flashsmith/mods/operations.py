"""The operations of an expression: the number and kinds of operands, and the kind of the result.

Names and meanings are torch's, over int32, float32 and bool. C++ defines them in
mods/arithmetic.cuh; ``evaluate`` calls torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Kind(IntEnum):
    """The kind of a value; an operation on several kinds is computed in the highest."""

    BOOL = 0
    INT = 1
    FLOAT = 2

    @property
    def text(self) -> str:
        """The name in an expression's text."""
        return self.name.lower()

    @property
    def cpp(self) -> str:
        return ("bool", "int32_t", "float")[self]


@dataclass(frozen=True)
class Operation:
    """An operation, whose operands are converted to the highest kind among them, at least
    ``lowest``.

    gives: The kind of the result; None: the operands' kind after conversion.
    """

    arity: int
    lowest: Kind
    highest: Kind = Kind.FLOAT
    gives: Kind | None = None


_ARITHMETIC = Operation(2, Kind.INT)
_COMPARISON = Operation(2, Kind.BOOL, gives=Kind.BOOL)
_BITWISE = Operation(2, Kind.BOOL, Kind.INT)
_SHIFT = Operation(2, Kind.INT, Kind.INT)
_FUNCTION = Operation(1, Kind.FLOAT)
_TEST = Operation(1, Kind.FLOAT, gives=Kind.BOOL)

_FUNCTIONS = (
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sigmoid",
    "erf",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "floor",
    "ceil",
    "round",
    "trunc",
    "detach",
)

OPERATIONS: dict[str, Operation] = {
    "add": _ARITHMETIC,
    "sub": _ARITHMETIC,
    "mul": _ARITHMETIC,
    "div": Operation(2, Kind.FLOAT),
    "floor_divide": _ARITHMETIC,
    "remainder": _ARITHMETIC,
    "fmod": _ARITHMETIC,
    "pow": _ARITHMETIC,
    "minimum": _ARITHMETIC,
    "maximum": _ARITHMETIC,
    "clamp_min": Operation(2, Kind.FLOAT),
    "clamp_max": Operation(2, Kind.FLOAT),
    "atan2": Operation(2, Kind.FLOAT),
    "neg": Operation(1, Kind.INT),
    "abs": Operation(1, Kind.INT),
    "sign": Operation(1, Kind.INT),
    "eq": _COMPARISON,
    "ne": _COMPARISON,
    "lt": _COMPARISON,
    "le": _COMPARISON,
    "bitwise_and": _BITWISE,
    "bitwise_or": _BITWISE,
    "bitwise_xor": _BITWISE,
    "bitwise_not": Operation(1, Kind.BOOL, Kind.INT),
    "bitwise_left_shift": _SHIFT,
    "bitwise_right_shift": _SHIFT,
    "isnan": _TEST,
    "isinf": _TEST,
    "to_float": Operation(1, Kind.BOOL, gives=Kind.FLOAT),
    "to_int": Operation(1, Kind.BOOL, gives=Kind.INT),
    "to_bool": Operation(1, Kind.BOOL, gives=Kind.BOOL),
    **dict.fromkeys(_FUNCTIONS, _FUNCTION),
}

# For equal operands the derivative of a limit is that of the first, but maximum and minimum have
# half of each; the values are the same.
LIMITS = {"clamp_min": "maximum", "clamp_max": "minimum"}

CONVERSIONS = {Kind.FLOAT: "to_float", Kind.INT: "to_int", Kind.BOOL: "to_bool"}
