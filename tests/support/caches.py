"""Caches of a test's own, which do not compile what all the tests have in common."""

from __future__ import annotations

import shutil
from pathlib import Path

from flashsmith.configs import KernelId
from flashsmith.jit import KernelCache, Target, build_library
from support.sm80_kernels import BASE


def start_cache(root: Path) -> None:
    """Puts the objects of the host and the emulator there, but no kernel and no library."""
    build_library([KernelId(BASE)], Target.emulator())
    for folder in KernelCache().objects.glob("[he]*-*"):
        shutil.copytree(folder, root / "objects" / folder.name)
