"""Makes kernel caches for single tests, without compiling what all libraries share."""

from __future__ import annotations

import shutil
from pathlib import Path

from flashsmith.configs import KernelId
from flashsmith.jit import KernelCache, Target, build_library
from support.sm80_kernels import BASE


def kernel_free_cache(root: Path) -> KernelCache:
    """Returns a new cache with the session's host and emulator objects, but without libraries."""
    build_library([KernelId(BASE)], Target.emulator())
    session, cache = KernelCache(), KernelCache(root)
    cache.create()
    for entry in session.objects.iterdir():
        if entry.name.startswith(("host-", "emulator-")):
            shutil.copytree(entry, cache.objects / entry.name)
    return cache
