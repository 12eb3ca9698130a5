"""Refuses kernels that compile but would be wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from flashsmith.configs import parse_kernel_name_into_instance
from flashsmith.errors import BuildError
from flashsmith.jit import spills
from flashsmith.jit.module import Module

logger = logging.getLogger("flashsmith")

_RELEASED_EARLY = (
    "kernels that let shared memory be overwritten before they have read it are not run: before "
    "the arrival, use the registers that were loaded or put a fence.proxy.async, or arrive later "
    "(docs/troubleshooting.md):"
)


def refuse_wrong_kernels(modules: Sequence[Module]) -> None:
    """Raises BuildError for kernels that would be wrong, and warns of kernels that would be slow. A
    spill is only a warning, because another compiler version may spill where the one that a table
    was measured with did not, and a caller prefers a slow result to none.

    The manifest of a module holds the findings of compiler and lint, so that a cached module is
    refused just as it was when it was new.
    """
    for text in (text for module in modules for text in _slowness(module)):
        logger.warning("%s: it will be slow", text)
    problems = [text for module in modules for text in _early_releases(module)]
    if problems:
        raise BuildError("\n  ".join([_RELEASED_EARLY, *problems]))


def _early_releases(module: Module) -> Iterator[str]:
    """Yields at most one sentence for a kernel: the first early release stands for the others."""
    first, *others = module.lint.early_releases or (None,)
    if first is not None:
        more = f"; {len(others)} more of its instructions are, too" if others else ""
        yield f"{module.name}: {first}{more}"


def _slowness(module: Module) -> Iterator[str]:
    """Yields spills that are not allowed, and serialised instructions."""
    allowed = spills.allowed_spill_bytes(parse_kernel_name_into_instance(module.name))
    for kernel in module.resources:
        if kernel.spilled > allowed:
            yield (
                f"{module.name} spills {kernel.spilled} bytes of registers on {kernel.arch} "
                f"({allowed} allowed)"
            )
    for text in module.manifest["performance_warnings"]:
        yield f"{module.name}: {text}"
