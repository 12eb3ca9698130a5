"""Lock files: one thread among all processes holds one at a time."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path
from types import TracebackType

logger = logging.getLogger("flashsmith")

# The errors of flock on file systems without locks: Lustre mounted without them, NFS from a server
# without them, FUSE.
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK}
_PRIVATE = 0o600


class FileLock:
    """A system lock (flock), which is released when its process ends, however it ends.

    The file remains. On a file system without locks, callers continue without one: a file's
    existence is never a lock, because nobody would remove it after its process died.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_real = False  # whether the lock keeps others out
        self._descriptor: int | None = None

    def acquire(self, wait: bool = True) -> bool:
        """Returns whether the caller may continue; False: another holds the lock, and ``wait`` is
        False.

        Raises:
            OSError: The file cannot be opened or locked.
        """
        while True:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, _PRIVATE)
            _held.add(self)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                self.is_real = True
                if os.fstat(self._descriptor).st_nlink:  # else the file was removed meanwhile
                    return True
                self.release()
            except BlockingIOError:
                self.release()
                return False
            except OSError as error:
                self.release()
                if error.errno not in _NO_LOCKS:
                    raise
                _say_that_there_are_none(self.path.parent)
                return True
            except BaseException:
                self.release()
                raise

    def release(self) -> None:
        """Releases the lock; does nothing if it is not held."""
        _held.discard(self)
        descriptor, self._descriptor = self._descriptor, None
        self.is_real = False
        if descriptor is not None:
            os.close(descriptor)  # closing releases the lock

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


_held: set[FileLock] = set()
_told: set[Path] = set()


def _say_that_there_are_none(folder: Path) -> None:
    if folder not in _told:
        _told.add(folder)
        logger.warning(
            "the file system of %s has no file locks (flock): processes that want the same at the "
            "same time may each make it",
            folder,
        )


def _let_go_in_child() -> None:
    """Drops the parent's locks in a child process: copied descriptors would keep them held after
    the parent releases them."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_let_go_in_child)
