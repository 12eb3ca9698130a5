"""Loads the scripts of benchmarks/, examples/ and tools/ as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from support.paths import ROOT


def load_script(path: str) -> ModuleType:
    """Loads a script, ``path`` from the root of the project, as a new module.

    The script finds the modules beside it. It stays in sys.modules, where dataclasses look for it.
    """
    script = ROOT / path
    spec = importlib.util.spec_from_file_location(Path(path).stem, script)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    before = [*sys.path]
    sys.path.insert(0, str(script.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module
