"""Rewrites a file's tests for flashsmith, as a syntax tree."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeGuard

# Names that flashsmith's flash_attn does not have; a test that uses one cannot run.
_NOT_THERE = {
    "flash_attn_gpu": "about FlashAttention's own extension",
    "raises": "about FlashAttention's own errors",
}

# The file's helper that normalises FlashAttention's S_dmask; flashsmith's is normalised already.
_NORMALISES = "normalize_flash_attn_S"

_HEADER = """\
import os
import torch
import flashsmith
from tools.flash_attn_tests.absent import Absent
flashsmith.install_as_flash_attn()
"""
# Workers of pytest-xdist share the GPUs: each makes one of them its current device.
_CUDA_HEADER = """\
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
torch.cuda.set_device(_worker % torch.cuda.device_count())
"""
_TOLD_CAPABILITY = "(9, 0)"  # for tests that query it without a GPU


@dataclass(frozen=True)
class Part:
    """A test.

    assertions: Number of assertions in its code.
    why_not: The reason why it cannot run; empty if it can.
    """

    name: str
    assertions: int
    why_not: str


def rewrite(text: str, device: str) -> tuple[ast.Module, list[Part]]:
    """Returns the file rewritten for a device, "cuda" or "cpu", and its tests."""
    tree = ast.parse(text)
    tests = [_part(node) for node in tree.body if is_test(node)]
    tree = _ForFlashsmith(device).visit(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == _NORMALISES:
            node.body = ast.parse(f"return {node.args.args[0].arg}").body
    header = ast.parse(_HEADER + (_CUDA_HEADER if device == "cuda" else "")).body
    tree.body = _after_future_imports(tree.body, header)
    return ast.fix_missing_locations(tree), tests


def is_test(node: ast.AST) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test_")


def _part(test: ast.FunctionDef) -> Part:
    missing = [why for name, why in _NOT_THERE.items() if name in set(_names(test))]
    return Part(test.name, _count_assertions(test), missing[0] if missing else "")


class _ForFlashsmith(ast.NodeTransformer):
    """Replaces names that flashsmith's flash_attn lacks by stand-ins, and the GPU by the device."""

    def __init__(self, device: str) -> None:
        self._device = device

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.AST]:
        module = node.module or ""
        if module.partition(".")[0] != "flash_attn":
            return node
        absent = [alias for alias in node.names if not _has(module, alias.name)]
        node.names = [alias for alias in node.names if alias not in absent]
        stand_ins = [_stand_in(module, alias) for alias in absent]
        return [*([node] if node.names else []), *ast.parse("\n".join(stand_ins)).body]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self._device == "cpu" and ast.unparse(node.func) == "torch.cuda.get_device_capability":
            return ast.parse(_TOLD_CAPABILITY, mode="eval").body
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant(self._device) if node.value == "cuda" else node


def _stand_in(module: str, alias: ast.alias) -> str:
    """Returns a statement that defines a name that a module lacks."""
    return f"{alias.asname or alias.name} = Absent('{module}.{alias.name}')"


def _has(module: str, name: str) -> bool:
    """Returns whether flashsmith's flash_attn has a name in a module."""
    try:
        return hasattr(importlib.import_module(module.replace("flash_attn", _OURS, 1)), name)
    except ModuleNotFoundError:
        return False


_OURS = "flashsmith.flash_attn"


def _names(node: ast.AST) -> Iterable[str]:
    """Yields the names in the code, including those of arguments and imports."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.keyword):
            yield each.arg or ""
        elif isinstance(each, ast.alias):
            yield each.name


def _count_assertions(node: ast.AST) -> int:
    return sum(isinstance(each, ast.Assert) for each in ast.walk(node))


def _after_future_imports(body: list[ast.stmt], header: list[ast.stmt]) -> list[ast.stmt]:
    """Inserts a header after imports of __future__, which have to come first."""
    places = [i for i, node in enumerate(body)
              if isinstance(node, ast.ImportFrom) and node.module == "__future__"]  # fmt: skip
    place = max(places, default=-1) + 1
    return [*body[:place], *header, *body[place:]]
