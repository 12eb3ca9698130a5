"""Imports between the folders of the package go one way: from a layer to those below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import flashsmith

PACKAGE = Path(flashsmith.__file__).parent

# The lowest layer comes first. The parts of one layer do not import each other.
LAYERS = (
    ("errors", "version", "dtype", "importing"),
    ("settings", "gpus", "problem"),
    ("configs", "mods"),
    ("codegen",),
    ("jit",),
    ("runtime",),
    ("selection", "reference"),
    ("ops",),
    ("integrations",),
    ("flash_attn",),
    ("lab.bench",),
    ("lab.soak",),
    ("lab.tuning",),
    ("lab.report",),
    ("lab.commands",),
    ("cli",),
)
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def layer(parts: Sequence[str]) -> str:
    """Returns the layer of a module, from the parts of its name below the package."""
    return ".".join(parts[: 2 if parts[0] == "lab" else 1])


def layer_of(path: Path) -> str:
    return layer(path.relative_to(PACKAGE).with_suffix("").parts)


def imported_layers(path: Path) -> Iterator[tuple[str, int]]:
    """Yields the layers that a file imports from, anywhere in it, with the line numbers."""
    for node in ast.walk(ast.parse(path.read_text())):
        modules: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module in ("flashsmith", "flashsmith.lab"):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        for module in modules:
            first, *parts = module.split(".")
            if first == "flashsmith" and parts:
                yield layer(parts), node.lineno


LAB = PACKAGE / "lab" / "__init__.py"
FILES = sorted(
    p for p in PACKAGE.rglob("*.py") if p != LAB and (p.parent != PACKAGE or layer_of(p) in RANKS)
)


def test_every_folder_has_its_layer() -> None:
    found = [*PACKAGE.glob("*/__init__.py"), *PACKAGE.glob("lab/*/__init__.py")]
    folders = {layer_of(path.parent) for path in found if path != LAB}
    assert {name for name in RANKS if PACKAGE.joinpath(*name.split(".")).is_dir()} == folders


def test_the_command_line_alone_imports_the_lab() -> None:
    importing = {
        layer_of(path)
        for path in FILES
        for name, _ in imported_layers(path)
        if name.startswith("lab")
    }
    assert {name for name in importing if not name.startswith("lab.")} == {"cli"}


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
    """This holds within a folder, too."""
    modules = {
        ".".join(("flashsmith", *p.relative_to(PACKAGE).with_suffix("").parts)): p for p in FILES
    }
    edges: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = set()
        for node in ast.parse(path.read_text()).body:  # imports that run when the module is loaded
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                found.add(str(node.module))
        edges[name] = found
    left = dict(edges)
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert left == {}
