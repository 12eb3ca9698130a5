"""The derivative of a score_mod with respect to its score argument, by forward mode.

At kinks it is torch's derivative; steps have slope 0. A branch that is not taken has no effect,
whereas torch may multiply its infinite derivative by zero, which is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from flashsmith.mods.expression import Expression, Node
from flashsmith.mods.graph import Graph
from flashsmith.mods.operations import Kind
from flashsmith.mods.terms import Term

Rule = Callable[..., Term | float]


def derivative(expression: Expression) -> Expression:
    """Returns an expression whose score is the derivative. It reads the same buffers by the same
    indices."""
    graph, root = Graph.of(expression), expression.score
    place = graph.constant(1.0) if root is None else _slope_at(graph, expression, root)
    return replace(expression, nodes=tuple(graph.nodes), score=place, visible=None)


def _slope_at(graph: Graph, expression: Expression, root: int) -> int:
    """Returns the index of the slope of the value at ``root``."""
    slopes: dict[int, Term] = {}
    for place in expression.needed_for(root):
        slope = _slope(Term(graph, place), expression.nodes[place], slopes)
        if slope.number != 0:
            slopes[place] = slope
    return slope.place


def _slope(value: Term, node: Node, slopes: Mapping[int, Term]) -> Term:
    """Returns the slope of a value from its operands' slopes. Operands that do not depend on the
    score have none."""
    if node.operation == "input":
        return value.like(node.value == "score")
    if node.kind is not Kind.FLOAT or not slopes.keys() & set(node.operands):
        return value.like(0)
    operands = [Term(value.graph, operand) for operand in node.operands]
    if node.operation in CHOICES:
        changes = [slopes.get(operand, value.like(0)) for operand in node.operands]
        return CHOICES[node.operation](operands, changes)
    slope = value.like(0)
    for operand, rule in zip(node.operands, RULES[node.operation], strict=True):
        if operand in slopes:
            slope = slope + _chained(slopes[operand], rule(*operands, value))
    return slope


def _chained(slope: Term, factor: Term | float) -> Term:
    """Returns the product; zero if zero was chosen as the slope, because the factor may be
    infinite."""
    if (branches := _branches(slope)) and 0 in (branches[1].number, branches[2].number):
        condition, yes, no = branches
        return condition.choose(_chained(yes, factor), _chained(no, factor))
    is_known = not isinstance(factor, Term) or factor.number is not None
    if is_known or not _may_choose_zero(slope):
        return slope * factor
    return slope.apply("eq", 0.0).choose(0, slope * factor)


def _branches(value: Term) -> list[Term]:
    """Returns the condition and both values of a ``where``; an empty list for any other value."""
    node = value.graph.nodes[value.place]
    operands = node.operands if node.operation == "where" else ()
    return [Term(value.graph, operand) for operand in operands]


def _may_choose_zero(value: Term) -> bool:
    needed = {value.place}
    for place in range(value.place, -1, -1):
        if place in needed:
            needed.update(value.graph.nodes[place].operands)
            if any(branch.number == 0 for branch in _branches(Term(value.graph, place))):
                return True
    return False


# ---- operations that pass one of their operands on ----


def _where(operands: list[Term], slopes: list[Term]) -> Term:
    return operands[0].choose(slopes[1], slopes[2])


def _maximum(operands: list[Term], slopes: list[Term]) -> Term:
    return _shared(operands, slopes, _clamp_min(operands, slopes))


def _minimum(operands: list[Term], slopes: list[Term]) -> Term:
    return _shared(operands, slopes, _clamp_max(operands, slopes))


def _shared(operands: list[Term], slopes: list[Term], otherwise: Term) -> Term:
    """Returns half of each slope where the operands are equal, as torch does."""
    return operands[0].apply("eq", operands[1]).choose((slopes[0] + slopes[1]) * 0.5, otherwise)


def _clamp_min(operands: list[Term], slopes: list[Term]) -> Term:
    return operands[0].apply("lt", operands[1]).choose(slopes[1], slopes[0])


def _clamp_max(operands: list[Term], slopes: list[Term]) -> Term:
    return operands[1].apply("lt", operands[0]).choose(slopes[1], slopes[0])


CHOICES: dict[str, Callable[[list[Term], list[Term]], Term]] = {
    "where": _where,
    "maximum": _maximum,
    "minimum": _minimum,
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
}

# ---- operations that compute ----


def _flat(*_: Term) -> float:
    return 0


def _one(*_: Term) -> float:
    return 1


def _power_by_base(x: Term, exponent: Term, _y: Term) -> Term | float:
    if exponent.number is not None:
        return 0 if exponent.number == 0 else exponent.number * _power(x, exponent.number - 1)
    slope = exponent * x.apply("pow", exponent - 1)
    return exponent.apply("eq", 0.0).choose(0, slope)


def _power(x: Term, exponent: float) -> Term:
    """Returns x^exponent by a cheaper operation than a power if there is one."""
    if exponent == 1:
        return x
    if exponent == 2:
        return x * x
    return x.apply("sqrt") if exponent == 0.5 else x.apply("pow", exponent)


def _power_by_exponent(x: Term, exponent: Term, y: Term) -> Term:
    if x.number is not None and x.number > 0:
        return y * math.log(x.number)
    stays_zero = x.apply("eq", 0.0).apply("bitwise_and", exponent.like(0).apply("le", exponent))
    return stays_zero.choose(0, y * x.apply("log"))


def _by_square_of_distance(x: Term, y: Term, slope: Term) -> Term:
    """Returns atan2's slope, which is 0 at the origin."""
    square = x * x + y * y
    return square.apply("eq", 0.0).choose(0, slope / square)


_ARITHMETIC: dict[str, tuple[Rule, ...]] = {
    "add": (_one, _one),
    "sub": (_one, lambda a, b, y: -1),
    "mul": (lambda a, b, y: b, lambda a, b, y: a),
    "div": (lambda a, b, y: 1 / b, lambda a, b, y: -(y / b)),
    "floor_divide": (_flat, _flat),
    "remainder": (_one, lambda a, b, y: -a.apply("floor_divide", b)),
    "fmod": (_one, lambda a, b, y: -(a / b).apply("trunc")),
    "pow": (_power_by_base, _power_by_exponent),
    "atan2": (
        lambda a, b, y: _by_square_of_distance(a, b, b),
        lambda a, b, y: _by_square_of_distance(a, b, -a),
    ),
}
# Each rule takes x and the result y.
_FUNCTIONS: dict[str, Rule] = {
    "neg": lambda x, y: -1,
    "abs": lambda x, y: x.apply("sign"),
    "sign": _flat,
    "detach": _flat,
    "exp": lambda x, y: y,
    "exp2": lambda x, y: math.log(2) * y,
    "expm1": lambda x, y: y + 1,
    "log": lambda x, y: 1 / x,
    "log2": lambda x, y: 1 / math.log(2) / x,
    "log10": lambda x, y: 1 / math.log(10) / x,
    "log1p": lambda x, y: 1 / (x + 1),
    "sqrt": lambda x, y: 0.5 / y,
    "rsqrt": lambda x, y: -0.5 * (y * y * y),
    "reciprocal": lambda x, y: -(y * y),
    "sigmoid": lambda x, y: y * (1 - y),
    "erf": lambda x, y: 2 / math.sqrt(math.pi) * (-(x * x)).apply("exp"),
    "sin": lambda x, y: x.apply("cos"),
    "cos": lambda x, y: -x.apply("sin"),
    "tan": lambda x, y: 1 + y * y,
    "asin": lambda x, y: ((1 - x) * (1 + x)).apply("rsqrt"),
    "acos": lambda x, y: -((1 - x) * (1 + x)).apply("rsqrt"),
    "atan": lambda x, y: 1 / (1 + x * x),
    "sinh": lambda x, y: x.apply("cosh"),
    "cosh": lambda x, y: x.apply("sinh"),
    "tanh": lambda x, y: 1 - y * y,
    "floor": _flat,
    "ceil": _flat,
    "round": _flat,
    "trunc": _flat,
}
# Each operand has one rule, which gives its partial derivative from all operands and the result.
RULES = _ARITHMETIC | {name: (rule,) for name, rule in _FUNCTIONS.items()}
