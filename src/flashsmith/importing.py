"""Helpers for imports: a call after another module's import, and imports without collections."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


@contextmanager
def no_collections() -> Iterator[None]:
    """Turns the garbage collector off, for imports and a first call's look-ups: these make little
    garbage, but so many objects that the collector walks over all of torch's, which takes as long
    as all else."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def after_import(name: str, call: Callable[[], object]) -> None:
    """Calls ``call`` now if the module is imported, else right after its first import."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Watcher(name, call))


class _Watcher(MetaPathFinder):
    """Finds one module as the other finders do, and has its loader call a function at the end."""

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self._name, self._call = name, call

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_call(module: ModuleType) -> None:
            load(module)
            self._call()

        spec.loader.exec_module = load_and_call  # type: ignore[method-assign]
        return spec
