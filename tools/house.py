"""Counts signs of growing complexity, so that none grows unseen: `python -m tools.house`.

Each number is of the library, src/flashsmith without the laboratory and the command line, and is
read from its text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "flashsmith"
# The folders that measure, tune and explain, and the command line.
NOT_THE_LIBRARY = ("cli", "lab")
# Folders whose functions have the signatures that other libraries or torch expect.
SIGNATURES_OF_OTHERS = ("flash_attn", "integrations")


def files(but: tuple[str, ...] = NOT_THE_LIBRARY) -> Iterator[Path]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] not in but:
            yield path


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            yield node


def where(path: Path, node: ast.AST, name: str) -> str:
    return f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)} {name}"


def signatures_with_softmax_scale() -> list[str]:
    """Returns the functions of the library that take softmax_scale, but for those whose signature
    is another library's."""
    return [
        where(path, function, function.name)
        for path in files((*NOT_THE_LIBRARY, *SIGNATURES_OF_OTHERS, "reference"))
        for function in functions(path)
        if "softmax_scale" in [arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)]
    ]


def long_signatures(maximum: int = 8) -> list[str]:
    """Returns the functions that take too many arguments by position."""
    return [
        where(path, function, f"{function.name} takes {len(function.args.args)}")
        for path in files((*NOT_THE_LIBRARY, *SIGNATURES_OF_OTHERS))
        for function in functions(path)
        if len(function.args.args) > maximum
    ]


def family_classes() -> list[str]:
    return [
        where(path, node, node.name)
        for path in files(())
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Family")
    ]


def forms_of_a_call() -> list[str]:
    """Returns the records of a call's semantics: Python classes and C++ structs that have a softcap
    among their fields, by value or as a feature."""
    of_python = [
        where(path, node, node.name)
        for path in files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and any(
            isinstance(field, ast.AnnAssign) and ast.unparse(field.target) == "softcap"
            for field in node.body
        )
    ]
    of_cpp = [
        f"{path.relative_to(PACKAGE)}:{number} {line.strip()}"
        for path in sorted((PACKAGE / "csrc").rglob("*.h"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.match(r"\s+(double|float|bool) (softcap|cap)\b[^()]*;", line)
    ]
    return of_python + of_cpp


def asks_for_an_operation() -> list[str]:
    """Returns the lines that ask a configuration for its operation, by its class or by name.

    The registry has to know it and is left out, as is mods/, whose nodes have other operations.
    """
    pattern = re.compile(
        r"isinstance\([^)]*(Forward|Backward|Decode)KernelConfig"
        r"|\.operation (?:[=!]=|not in\b|in\b)"
    )
    return [
        f"{path.relative_to(PACKAGE)}:{number} {line.strip()}"
        for path in files((*NOT_THE_LIBRARY, "mods"))
        if path.name != "registry.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "signatures with softmax_scale": signatures_with_softmax_scale,
    "functions with more than 8 positional arguments": long_signatures,
    "classes of families": family_classes,
    "forms of what a call computes": forms_of_a_call,
    "places that ask a configuration for its operation": asks_for_an_operation,
}


def main() -> None:
    for name, count in NUMBERS.items():
        found = count()
        print(f"{name}: {len(found)}")
        for each in found:
            print(f"    {each}")


if __name__ == "__main__":
    main()
