"""The scripts in tools/docs, as modules."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from support.paths import ROOT


def docs_tool(name: str) -> ModuleType:
    path = ROOT / "tools" / "docs" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
