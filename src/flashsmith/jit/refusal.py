"""Refuses kernels that compile but would be wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from flashsmith.errors import BuildError
from flashsmith.jit import spills
from flashsmith.jit.cache import Manifest
from flashsmith.jit.lint import Lint
from flashsmith.jit.ptxas import KernelResources
from flashsmith.jit.units import TranslationUnit

logger = logging.getLogger("flashsmith")

_RELEASED_EARLY = (
    "kernels that let shared memory be overwritten before they have read it are not built into a "
    "library: before the arrival, use the registers that were loaded or put a fence.proxy.async, "
    "or arrive later (docs/troubleshooting.md):"
)


def refuse_wrong_kernels(units: Sequence[TranslationUnit], objects: Mapping[str, Manifest]) -> None:
    """Raises BuildError for kernels that would be wrong, and warns of kernels that would be slow. A
    spill is only a warning, because another compiler version may spill where the one that a table
    was measured with did not, and a caller prefers a slow result to none.

    objects: Entry -> manifest. The manifest holds the findings of compiler and lint, so that a
    cached object is refused just as it was when it was new.
    """
    kernels = [(unit, objects[unit.entry]) for unit in units if unit.instance is not None]
    for unit, manifest in kernels:
        for text in _slowness(unit, manifest):
            logger.warning("%s: it will be slow", text)
    problems = [text for kernel in kernels for text in _early_releases(*kernel)]
    if problems:
        raise BuildError("\n  ".join([_RELEASED_EARLY, *problems]))


def _early_releases(unit: TranslationUnit, manifest: Manifest) -> Iterator[str]:
    """Yields at most one sentence for a kernel: the first early release stands for the others."""
    first, *others = Lint.from_manifest(manifest["lint"]).early_releases or (None,)
    if first is not None:
        more = f"; {len(others)} more of its instructions are, too" if others else ""
        yield f"{unit.label}: {first}{more}"


def _slowness(unit: TranslationUnit, manifest: Manifest) -> Iterator[str]:
    """Yields spills that are not allowed, and serialised instructions."""
    assert unit.instance is not None
    allowed = spills.allowed_spill_bytes(unit.instance)
    for kernel in (KernelResources(**figures) for figures in manifest["kernels"]):
        if kernel.spilled > allowed:
            yield (
                f"{unit.label} spills {kernel.spilled} bytes of registers on {kernel.arch} "
                f"({allowed} allowed)"
            )
    for text in manifest["performance_warnings"]:
        yield f"{unit.label}: {text}"
