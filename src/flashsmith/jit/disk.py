"""Messages for errors of the disk and the system's limits, which say what to do."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flashsmith import settings
from flashsmith.errors import CacheError

NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_NOT_PERMITTED = {errno.EACCES, errno.EPERM, errno.EROFS}
_SPARE_DESCRIPTORS = 24  # files that a build opens beside its locks, rounded up
_USUAL_TEMPORARY = Path("/tmp")  # the default of compilers


def describe(root: Path, error: OSError) -> CacheError:
    """Returns the error for a failure to write into the cache at ``root``."""
    if error.errno in NO_DESCRIPTORS:
        return _too_many_open(error)
    # An error of shutil joins the texts of several errors and has no errno.
    if error.errno in _FULL or any(os.strerror(code) in str(error) for code in _FULL):
        return full(root, str(error))
    where = "that you can write"
    if error.errno not in _NOT_PERMITTED:
        where = "of another file system, best of a local disk"
    return CacheError(
        f"the kernel cache {root} cannot be written: {error}; set FLASHSMITH_CACHE_DIR to a "
        f"directory {where}"
    )


def full(root: Path, why: str) -> CacheError:
    """Returns the error of a disk without free space or free inodes.

    why: The message that reported it; a compiler's names the file.
    """
    temporary = settings.TMPDIR.get() or _USUAL_TEMPORARY
    return CacheError(
        f"no space left for building: {why}; the kernel cache {root} has {_free(root)}, the "
        f"temporary directory of compilers {temporary} {_free(temporary)}; make room, or set "
        "FLASHSMITH_CACHE_DIR, or TMPDIR, to a larger disk"
    )


@contextmanager
def descriptor_errors() -> Iterator[None]:
    """Turns an error of too many open files, whatever opens one, into CacheError."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise _too_many_open(error) from error
        raise


def max_locks() -> int:
    """Returns how many locks may be held at a time, so that the build can still open files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError):
        limit -= sum(1 for _ in Path("/proc/self/fd").iterdir())
    return max(1, limit - _SPARE_DESCRIPTORS)


def _too_many_open(error: OSError) -> CacheError:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CacheError(
        f"too many open files: {error}; this process may have {limit}, of which a build needs "
        f"about {_SPARE_DESCRIPTORS}: raise `ulimit -n`, or close what is open"
    )


def _free(path: Path) -> str:
    while not path.exists():
        path = path.parent
    disk = os.statvfs(path)
    text = f"{disk.f_bavail * disk.f_frsize} bytes free"
    return f"{text} and room for {disk.f_favail} files" if disk.f_files else text
