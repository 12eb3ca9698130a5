"""The caches in which kernels and the host library are looked up: the user's own, a shared one, and
those that came with the package."""

from __future__ import annotations

from pathlib import Path

from flashsmith import settings
from flashsmith.errors import CacheError
from flashsmith.jit.cache import KernelCache

# Folders of kernels that came with the code. A link stays one: a file of the package may be a link
# to a file elsewhere, which does not lie beside the kernels.
_prebuilt = [Path(__file__).absolute().parent.parent / "prebuilt"]


def find_caches() -> list[KernelCache]:
    """Returns the caches in which kernels are looked up, in this order: the user's own, which alone
    is written; the shared one; and the kernels that the package came with.

    Raises:
        CacheError: The own cache, or the shared one, is not safe to load code from.
    """
    own = KernelCache()
    own.check()
    found = [own]
    if (shared := settings.SHARED_CACHE.get()) is not None:
        found.append(_shared_cache(shared))
    return [*found, *(KernelCache(each, is_packaged=True) for each in _prebuilt if each.is_dir())]


def add_prebuilt(folder: Path) -> None:
    """Makes ``find_caches`` return also the kernels in ``folder``, which came with code that this
    process runs already."""
    _prebuilt.append(folder)


def _shared_cache(root: Path) -> KernelCache:
    """Returns a cache that its owner shares: nobody else's files are loaded from it."""
    try:
        cache = KernelCache(root, owner=root.stat().st_uid)
    except OSError as error:
        raise CacheError(
            f"FLASHSMITH_SHARED_CACHE is {root}, which cannot be read: {error}; name a folder that "
            "`flashsmith build --out` filled, or unset it"
        ) from error
    cache.check()
    return cache
