"""Files that one thread of all processes holds at a time."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path
from types import TracebackType

logger = logging.getLogger("flashsmith")

# What flock says where the file system has no locks: Lustre that was mounted without them, NFS
# whose server gives none, FUSE.
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK}
_PRIVATE = 0o600


class FileLock:
    """A lock of the system's (flock), which is freed when its process ends, however it ends.

    The file stays behind. Where the file system has no locks, whoever asks goes on without one: no
    file's existence stands for a lock, because nobody takes it away from a process that died.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_real = False  # whether acquiring it kept others away
        self._descriptor: int | None = None

    def acquire(self, wait: bool = True) -> bool:
        """Returns whether the caller may go on; False: another holds it, and ``wait`` is False.

        Raises:
            OSError: The file cannot be opened or locked.
        """
        while True:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, _PRIVATE)
            _held.add(self)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                self.is_real = True
                if os.fstat(self._descriptor).st_nlink:  # else somebody removed it meanwhile
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
        """Does nothing where it is not held."""
        _held.discard(self)
        descriptor, self._descriptor = self._descriptor, None
        self.is_real = False
        if descriptor is not None:
            os.close(descriptor)  # which frees the lock

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
    """What the parent holds is the parent's: a copy of its descriptor would outlive it."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_let_go_in_child)
