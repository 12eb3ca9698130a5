"""Generates an expression's C++ policies: specialisations of UserScore and its gradient."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from dataclasses import replace

from flashsmith.mods.derivative import derivative
from flashsmith.mods.expression import INT_MIN, Expression, Node
from flashsmith.mods.operations import LIMITS, Kind

HEADER = "flashsmith/mods/arithmetic.cuh"
GRADIENT_HEADER = "flashsmith/mods/gradient.cuh"

_NORMAL = 2.0**-125  # float32's smallest normal number is half of it

_SMALL = 2**30  # differences between a query or key and a number up to this do not wrap

_POLICY = """\
template <>
struct UserScore<{number:#x}> {{
  static constexpr bool kChangesScore = {changes}, kHides = {hides};

  static FLASHSMITH_DEVICE float score({score_arguments}) {{
{score}  }}

  static FLASHSMITH_DEVICE bool visible({visible_arguments}) {{
{visible}  }}
}};
"""
_GRADIENT = """\
template <>
struct UserScoreGradient<{number:#x}> {{
  static constexpr bool kIsOne = {is_one};

  static FLASHSMITH_DEVICE float factor({arguments}) {{
{factor}  }}
}};
"""
_SCORE = {"score": "float score"}
_POSITION = {"b": "int b", "h": "int h", "q": "int q", "kv": "Key key"}
_BUFFERS = "const ModBuffers &buffers"

# All other operations are functions of the header.
_INFIX = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}
_FLOAT_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_BITWISE_INFIX = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
# One of the two operands is the key, which has a separate argument.
_DISTANCES = {
    "keys_behind": "mods::keys_behind({0}, key)",
    "keys_ahead": "mods::keys_ahead(key, {1})",
}
_CPP_TYPES = {
    "float32": "float",
    "float16": "half_t",
    "bfloat16": "bfloat16_t",
    "int32": "int32_t",
    "bool": "bool",
}


def policy(expression: Expression) -> str:
    """Returns the text of ``UserScore`` for the expression's number, which needs HEADER and
    namespace flashsmith."""
    number, expression = expression.number, _with_distances(expression)
    changes, hides = expression.score is not None, expression.visible is not None
    return _POLICY.format(
        number=number,
        changes=str(changes).lower(),
        hides=str(hides).lower(),
        score_arguments=_arguments(expression, expression.score, _SCORE),
        score=_body(expression, expression.score, "score"),
        visible_arguments=_arguments(expression, expression.visible, {}),
        visible=_body(expression, expression.visible, "true"),
    )


def gradient(expression: Expression) -> str:
    """Returns the text of ``UserScoreGradient`` for the expression's number, which needs both
    headers and namespace flashsmith."""
    slope = _with_distances(derivative(expression))
    root = slope.nodes[slope.score or 0]
    return _GRADIENT.format(
        number=expression.number,
        is_one=str(root.operation == "constant" and root.value == 1).lower(),
        arguments=_arguments(slope, slope.score, _SCORE),
        factor=_body(slope, slope.score, "1.f"),
    )


def _with_distances(expression: Expression) -> Expression:
    """Returns an equal expression that computes float distances to keys by keys_behind and
    keys_ahead, which need no conversion for each key."""
    nodes = [_distance(expression.nodes, node) or node for node in expression.nodes]
    return replace(expression, nodes=tuple(nodes))


def _distance(nodes: Sequence[Node], node: Node) -> Node | None:
    """Returns the node that replaces to_float(place - kv) or to_float(kv - place), or to_float of
    their absolute values; None for any other node."""
    if node.operation != "to_float":
        return None
    place = node.operands[0]
    absolute = nodes[place].operation == "abs"
    difference = nodes[nodes[place].operands[0] if absolute else place]
    if difference.operation != "sub":
        return None
    left, right = (nodes[operand] for operand in difference.operands)
    if _is_place(left) and _is_key(right):
        name = "keys_behind"
    elif _is_key(left) and _is_place(right):
        name = "keys_ahead"
    else:
        return None
    return Node(name, Kind.FLOAT, difference.operands, "abs" if absolute else None)


def _is_key(node: Node) -> bool:
    return node.operation == "input" and node.value == "kv"


def _is_place(node: Node) -> bool:
    """Returns whether the difference between this value and a key cannot wrap."""
    if node.operation == "constant":
        return abs(int(node.value or 0)) <= _SMALL
    return node.operation == "input" and node.value == "q"


def _arguments(expression: Expression, root: int | None, first: dict[str, str]) -> str:
    """Returns the parameters; unused ones have no name, because compilers would warn."""
    used = {"score"} if root is None else expression.inputs_of(root)
    declared = first | _POSITION
    texts = [text if name in used else text.split()[0] for name, text in declared.items()]
    needed = [] if root is None else expression.needed_for(root)
    loads = any(expression.nodes[place].operation == "load" for place in needed)
    return ", ".join([*texts, _BUFFERS if loads else _BUFFERS.removesuffix("buffers")])


def _body(expression: Expression, root: int | None, absent: str) -> str:
    if root is None:
        return f"    return {absent};\n"
    lines = [
        f"    const {expression.nodes[place].kind.cpp} v{place} = {_value(expression, place)};\n"
        for place in expression.needed_for(root)
        if not _is_leaf(expression.nodes[place])
    ]
    return "".join([*lines, f"    return {_operand(expression, root)};\n"])


def _is_leaf(node: Node) -> bool:
    return node.operation in ("input", "constant")


def _operand(expression: Expression, place: int) -> str:
    node = expression.nodes[place]
    if not _is_leaf(node):
        return f"v{place}"
    if node.operation == "constant":
        return _literal(node)
    return "key.index()" if _is_key(node) else str(node.value)


def _value(expression: Expression, place: int) -> str:
    node = expression.nodes[place]
    operands = [_operand(expression, operand) for operand in node.operands]
    name = node.operation
    if name == "load":
        k = int(node.value or 0)
        element = _CPP_TYPES[expression.buffers[k].element]
        return f"mods::load<{element}>({', '.join(['buffers', str(k), *operands])})"
    if name == "detach":
        return operands[0]
    if name in _DISTANCES:
        distance = _DISTANCES[name].format(*operands)
        return f"mods::abs({distance})" if node.value == "abs" else distance
    if name == "where":
        return "{} ? {} : {}".format(*operands)
    if name == "div" and (inverse := _inverse(expression.nodes[node.operands[1]])) is not None:
        return f"mods::div_by_constant({operands[0]}, {operands[1]}, {inverse})"
    infix = _INFIX | _BITWISE_INFIX | (_FLOAT_INFIX if node.kind is Kind.FLOAT else {})
    if name in infix:
        return f"{operands[0]} {infix[name]} {operands[1]}"
    return f"mods::{LIMITS.get(name, name)}({', '.join(operands)})"


def _inverse(divisor: Node) -> str | None:
    """Returns the inverse of a constant if both are normal float32 numbers."""
    if divisor.operation != "constant":
        return None
    number = _as_float32(float(divisor.value or 0))
    if not _NORMAL <= abs(number) <= 1 / _NORMAL:
        return None
    return _literal(Node("constant", Kind.FLOAT, value=_as_float32(1 / number)))


def _as_float32(number: float) -> float:
    """Returns the number rounded to float32; infinity beyond the largest."""
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", number))
    except OverflowError:
        return math.inf
    return float(rounded)


def _literal(node: Node) -> str:
    value = node.value if node.value is not None else 0
    if node.kind is Kind.BOOL:
        return str(bool(value)).lower()
    if node.kind is Kind.INT:
        return str(value) if int(value) > INT_MIN else "INT32_MIN"
    number = float(value)
    if math.isnan(number):
        return "NAN"
    if math.isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    return re.sub(r"\.?0*p", "p", number.hex()) + "f"
