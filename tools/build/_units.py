"""Generates the translation units of kernels, and visits them in parallel."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from flashsmith import codegen
from flashsmith.configs import KernelId
from flashsmith.jit import Target
from flashsmith.jit.sources import PACKAGE_SOURCES
from flashsmith.jit.units import TranslationUnit, find_toolchain, plan_units

Found = TypeVar("Found")


def visit_units(
    kernels: Sequence[KernelId],
    target: Target,
    jobs: int,
    visit: Callable[[KernelId, TranslationUnit, Path], Found],
) -> Iterator[Found]:
    """Yields what ``visit`` returns for each kernel, in the order of the units.

    Args:
        visit: Takes a kernel, its unit, and a temporary folder with the unit's files. ``jobs``
            threads call it.
    """
    generated = codegen.generate(kernels)
    units = plan_units(kernels, generated, target, find_toolchain(target), PACKAGE_SOURCES.csrc)

    def visit_one(unit: TranslationUnit) -> Found:
        assert unit.instance is not None
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for file, text in unit.files.items():
                (folder / file).write_text(text)
            return visit(unit.instance, unit, folder)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(visit_one, (unit for unit in units if unit.instance is not None))
