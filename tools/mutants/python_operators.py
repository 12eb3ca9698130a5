"""The operators for Python: the ones of cosmic-ray that change what a program does.

Left out are operators that end every test at import (types joined by ``|``), edits without effect
(in annotations and decorators), and all but one replacement of each binary operator.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.operators.operator import Operator
from cosmic_ray.operators.provider import OperatorProvider

_BINARY = ("Add_Sub", "Sub_Add", "Mul_FloorDiv", "FloorDiv_Mul", "Div_Mul", "Mod_FloorDiv",
           "Pow_Mul", "LShift_RShift", "RShift_LShift", "BitAnd_BitXor")  # fmt: skip
_COMPARISON = ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Is_IsNot",
               "IsNot_Is")  # fmt: skip
_OPERATORS: dict[str, str] = {
    **{f"ReplaceBinaryOperator_{name}": "arithmetic" for name in _BINARY},
    **{f"ReplaceComparisonOperator_{name}": "relation" for name in _COMPARISON},
    "ReplaceUnaryOperator_USub_UAdd": "sign",
    "ReplaceUnaryOperator_Delete_Not": "negation",
    "AddNot": "condition",
    "ReplaceTrueWithFalse": "boolean",
    "ReplaceFalseWithTrue": "boolean",
    "ReplaceAndWithOr": "and, or",
    "ReplaceOrWithAnd": "and, or",
    "ReplaceBreakWithContinue": "break, continue",
    "ReplaceContinueWithBreak": "break, continue",
    "ExceptionReplacer": "exception",
    "NumberReplacer": "number",
    "ZeroIterationForLoop": "empty loop",
}


@dataclass(frozen=True)
class Place:
    """The ``index``-th mutation that an operator can make of a node of the syntax tree."""

    operator: str
    kind: str  # the operator in words
    node: int  # in the order of ast_nodes
    index: int
    line: int


def places(text: str) -> list[Place]:
    """Returns every place of every operator, by position in the file."""
    provider = OperatorProvider()
    operators = {name: provider[name]() for name in _OPERATORS}
    unseen = _unseen(text)
    found = []
    for number, node in enumerate(ast_nodes(parso.parse(text))):
        for name, operator in operators.items():
            for index, (start, _end) in enumerate(operator.mutation_positions(node)):
                if not any(first <= start < last for first, last in unseen):
                    found.append(Place(name, _OPERATORS[name], number, index, start[0]))
    return found


def mutate(text: str, place: Place) -> str:
    operator: Operator = OperatorProvider()[place.operator]()
    tree = parso.parse(text)
    for number, node in enumerate(ast_nodes(tree)):
        if number == place.node:
            parent = node.parent
            changed = operator.mutate(node, place.index)
            if changed is not node:
                parent.children[parent.children.index(node)] = changed
            break
    return str(tree.get_code())


Span = tuple[tuple[int, int], tuple[int, int]]


def _unseen(text: str) -> list[Span]:
    return [
        ((a.lineno, a.col_offset), (a.end_lineno or a.lineno, a.end_col_offset or 0))
        for node in ast.walk(ast.parse(text))
        for a in [*_annotations(node), *getattr(node, "decorator_list", ())]
    ]


def _annotations(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, (ast.AnnAssign, ast.arg)) and node.annotation:
        yield node.annotation
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns:
        yield node.returns
