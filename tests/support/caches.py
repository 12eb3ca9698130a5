"""Makes kernel caches for single tests, without compiling what all kernels share."""

from __future__ import annotations

import shutil
from pathlib import Path

from flashsmith.jit import KernelCache, build_host


def kernel_free_cache(root: Path) -> KernelCache:
    """Returns a new cache with the session's host library, but without kernels."""
    host, cache = build_host(), KernelCache(root)
    cache.create()
    shutil.copytree(host.directory, cache.hosts / host.directory.name)
    return cache
