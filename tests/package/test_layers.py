"""Imports between the folders of the package go one way: from a layer to those below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import flashsmith

PACKAGE = Path(flashsmith.__file__).parent

# From the lowest. What stands in one line knows nothing of each other.
LAYERS = (
    ("errors", "version", "dtype"),
    ("settings", "gpus", "problem"),
    ("configs", "mods"),
    ("codegen",),
    ("jit",),
    ("runtime",),
    ("selection", "reference"),
    ("ops",),
    ("integrations",),
    ("flash_attn",),
    ("bench",),
    ("soak",),
    ("tuning",),
    ("report",),
    ("lab",),
    ("cli",),
)
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_layers(path: Path) -> Iterator[tuple[str, int]]:
    """The layers that a file imports from, anywhere in it, with the lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module == "flashsmith":
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flashsmith."):
            names = [(node.module or "").split(".")[1]]
        elif isinstance(node, ast.Import):
            parts = [alias.name.split(".") for alias in node.names]
            names = [part[1] for part in parts if part[0] == "flashsmith" and len(part) > 1]
        for name in names:
            yield name, node.lineno


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or layer_of(p) in RANKS)


def test_every_folder_has_its_layer() -> None:
    folders = {p.parent.name for p in PACKAGE.glob("*/__init__.py")}
    assert folders <= set(RANKS)
    assert {name for name in RANKS if (PACKAGE / name).is_dir()} == folders


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    own = layer_of(path)
    upward = [
        f"line {line}: {name}"
        for name, line in imported_layers(path)
        if name != own and RANKS[name] >= RANKS[own]
    ]
    assert upward == []


def test_no_module_imports_itself_over_others() -> None:
    """Within a folder, too."""
    modules = {
        ".".join(("flashsmith", *p.relative_to(PACKAGE).with_suffix("").parts)): p for p in FILES
    }
    edges: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = set()
        for node in ast.parse(path.read_text()).body:  # those that run when the module is loaded
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                found.add(str(node.module))
        edges[name] = found
    left = dict(edges)
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert left == {}
