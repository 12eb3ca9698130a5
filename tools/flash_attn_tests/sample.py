"""Draws the cases that run: a random sample of each test, within a limit on all kernels."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from flashsmith.configs import KernelId
from tools.flash_attn_tests.cases import Case, Grid
from tools.flash_attn_tests.rewrite import is_test

_PARAMETRIZE = "pytest.mark.parametrize"


@dataclass
class Sample:
    """The cases that run, by test, and the kernels that they need."""

    cases: dict[str, list[Case]] = field(default_factory=dict)
    kernels: set[KernelId] = field(default_factory=set)


@dataclass(frozen=True)
class Limits:
    cases: int  # for each test
    kernels: int  # for all tests together


def draw(
    candidates: Mapping[str, Iterable[Case]],
    limits: Limits,
    kind: Callable[[str, Case], Hashable],
    needed: Callable[[str, Case], Set[KernelId]],
) -> Sample:
    """Takes cases of all tests in turn, so that each test gets its share of the kernels.

    Args:
        candidates: The cases of each test, in the order in which they are tried.
        kind: The properties that mostly decide a case's kernels. Once the limit on kernels is
            reached, only cases of a kind that was taken are tried, because finding their kernels
            takes time.
        needed: Returns the kernels that a case needs.
    """
    sample = Sample({name: [] for name in candidates})
    taken: set[Hashable] = set()

    def fits(name: str, case: Case) -> bool:
        full = len(sample.kernels) >= limits.kernels
        if full and kind(name, case) not in taken:
            return False
        kernels = sample.kernels | needed(name, case)
        if len(kernels) > limits.kernels:
            return False
        sample.kernels = kernels
        taken.add(kind(name, case))
        return True

    waiting = {name: iter(cases) for name, cases in candidates.items()}
    while waiting:
        for name, cases in list(waiting.items()):
            case = next((case for case in cases if fits(name, case)), None)
            if case is not None:
                sample.cases[name].append(case)
            if case is None or len(sample.cases[name]) >= limits.cases:
                del waiting[name]
    return sample


def shuffled(grid: Grid, numbers: Sequence[int], seed: str) -> Iterator[Case]:
    order = list(numbers)
    random.Random(seed).shuffle(order)
    return (grid[number] for number in order)


def write_cases(tree: ast.Module, cases: Mapping[str, Sequence[Case]]) -> str:
    """Returns the file's text with only these cases; tests without any are left out."""
    tree.body = [node for node in tree.body if not is_test(node) or cases.get(node.name)]
    for node in tree.body:
        if is_test(node):
            others = [each for each in node.decorator_list if not _is_parametrize(each)]
            node.decorator_list = [*_parametrize(cases[node.name]), *others]
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _is_parametrize(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == _PARAMETRIZE


def _parametrize(cases: Sequence[Case]) -> list[ast.expr]:
    names = list(cases[0])
    if not names:
        return []
    rows = ", ".join(_tuple(case[name] for name in names) for case in cases)
    text = f"{_PARAMETRIZE}({names!r}, [{rows}])"
    return [ast.parse(text, mode="eval").body]


def _tuple(values: Iterable[Any]) -> str:
    """Returns the code of a tuple of None, numbers, strings or dtypes, whose repr is their code."""
    return f"({''.join(f'{value!r}, ' for value in values)})"
