"""The kernel cache on disk: atomic, private, checked entries. See ``KernelCache``."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flashsmith import settings
from flashsmith.errors import CacheError
from flashsmith.jit.disk import NO_DESCRIPTORS, describe, descriptor_errors, full, max_locks
from flashsmith.jit.locks import FileLock

Manifest = dict[str, Any]
Claims = dict[str, FileLock]  # entry -> its lock, held

MANIFEST = "manifest.json"
_KEY_DIGITS = 16  # digits of the key in an entry's name
_PRIVATE = 0o700
_READABLE = 0o644
_WRITABLE_BY_OTHERS = 0o022
_OLD_SECONDS = 24 * 3600
_SHOWN_FILES = 5


class KernelCache:
    """Compiled kernels under one folder::

        kernels/<slug>-<hash>/    the module of one kernel, for one architecture or the emulator
        hosts/host-<hash>/        the host library
        objects/<name>-<hash>/    one compiled file of the host library
        staging/                  builds in progress; nothing is ever loaded from here
        locks/                    one file per entry that is or was being built
        mods/<hash>.txt           what a kernel computes that was generated from Python functions
        failed/                   sources and logs of the last failures, for reading

    An entry is a folder that appears by one rename. Its manifest holds the whole key, and the size
    and hash of its file. An entry that does not agree with its manifest, or whose name
    belongs to another key, counts as absent. Code is loaded from here, so a folder that another
    user owns or can write is refused.
    """

    def __init__(
        self, root: Path | None = None, *, owner: int | None = None, is_packaged: bool = False
    ) -> None:
        """Names the folder; nothing is created.

        root: The folder; default: FLASHSMITH_CACHE_DIR, else the user's cache directory.
        owner: A user whose files are loaded, too.
        is_packaged: Whether the cache is a part of the package, whose code is trusted anyway.
        """
        self._owner, self._is_packaged = owner, is_packaged
        self.root = root.expanduser().absolute() if root else settings.cache_folder()
        if not _is_one_line(self.root):
            raise CacheError(
                f"the path of the kernel cache {str(self.root)!r} has a line break or bytes that "
                "are no UTF-8, which no compiler is given; set FLASHSMITH_CACHE_DIR to another"
            )
        self.kernels = self.root / "kernels"
        self.hosts = self.root / "hosts"
        self.objects = self.root / "objects"
        self.failed = self.root / "failed"
        self._staging = self.root / "staging"
        self._locks = self.root / "locks"
        self._mods = self.root / "mods"

    def check(self) -> None:
        """Raises CacheError if the cache exists and another user owns it or can write it, or if it
        cannot be read."""
        for folder in (self.root, self.kernels, self.hosts, self.objects, self._staging):
            try:
                status = folder.stat()
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:  # bytes that no file system allows
                raise self._unreadable(error) from error
            self._check_folder(folder, status)

    def _check_folder(self, folder: Path, status: os.stat_result) -> None:
        if not stat.S_ISDIR(status.st_mode):
            raise CacheError(
                f"the kernel cache {folder} is not a directory; set FLASHSMITH_CACHE_DIR"
            )
        if self._is_packaged:
            return
        if status.st_uid not in self._trusted_users():
            raise CacheError(
                f"the kernel cache {folder} belongs to user {status.st_uid}, not to you "
                f"({os.geteuid()}), and code is loaded from it; `chown` it or set "
                "FLASHSMITH_CACHE_DIR to a directory of your own"
            )
        if status.st_mode & _WRITABLE_BY_OTHERS:
            raise CacheError(
                f"the kernel cache {folder} can be written by other users (mode "
                f"{status.st_mode & 0o777:o}), and code is loaded from it; `chmod 700 {folder}`"
            )

    def _unreadable(self, error: Exception) -> CacheError:
        return CacheError(
            f"the kernel cache {self.root} cannot be read: {error}; have it given to you "
            f"({os.geteuid()}), by `chown -R` of whom it belongs to, or set FLASHSMITH_CACHE_DIR "
            "to a directory of your own"
        )

    def create(self) -> None:
        """Creates missing folders. Raises CacheError if one cannot be created."""
        self.check()
        with self.disk_errors():
            for folder in (self.root, self.kernels, self.hosts, self.objects, self.failed,
                           self._staging, self._locks):  # fmt: skip
                folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)

    def entries(self, folder: Path) -> list[Path]:
        """Returns the entries in ``kernels``, ``hosts`` or ``objects``, sound or not, by name."""
        try:
            with descriptor_errors():
                return (
                    sorted(folder.iterdir(), key=lambda each: each.name) if folder.is_dir() else []
                )
        except OSError as error:
            raise self._unreadable(error) from error

    def kernels_by_slug(self) -> dict[str, list[Path]]:
        """Returns the entries of each kernel, sound or not: those of all architectures, compilers
        and versions of the sources."""
        found: dict[str, list[Path]] = {}
        for entry in self.entries(self.kernels):
            found.setdefault(entry.name.rpartition("-")[0], []).append(entry)
        return found

    def read(self, entry: Path, key: str | None = None, check_hash: bool = True) -> Manifest | None:
        """Returns the manifest of a sound entry; None if it is absent, damaged or foreign.

        key: The key that the entry must have been built for; None: the key in its name.
        """
        with descriptor_errors():  # an entry is not absent because descriptors ran out
            return self._read(entry, key, check_hash)

    def _read(self, entry: Path, key: str | None, check_hash: bool) -> Manifest | None:
        try:
            if self._is_foreign(entry) or self._is_foreign(entry / MANIFEST):
                return None
            manifest: Manifest = json.loads((entry / MANIFEST).read_text())
            if manifest.pop("manifest_sha256") != _manifest_hash(manifest):
                return None
            artifact = manifest["artifact"]
            if not (
                _is_whole(manifest)
                and entry.name.endswith(f"-{manifest['key'][:_KEY_DIGITS]}")
                and key in (None, manifest["key"])
            ):
                return None
            path = entry / artifact["file"]
            if self._is_foreign(path) or path.stat().st_size != artifact["bytes"]:
                return None
            if check_hash and _sha256(path) != artifact["sha256"]:
                return None
            return manifest
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                raise
            return None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def _is_foreign(self, path: Path) -> bool:
        status = path.stat()  # raises if there is none
        if self._is_packaged:
            return False
        is_trusted = status.st_uid in self._trusted_users()
        return not is_trusted or bool(status.st_mode & _WRITABLE_BY_OTHERS)

    def _trusted_users(self) -> set[int | None]:
        return {os.geteuid(), 0, self._owner}  # root can write everywhere anyway

    @contextmanager
    def staging(self, entry: str) -> Iterator[Path]:
        """Yields a new private folder on the cache's file system, which is removed unless
        published."""
        with self.disk_errors():
            path = Path(tempfile.mkdtemp(prefix=f"{entry}.", dir=self._staging))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def publish(
        self, staged: Path, entry: Path, key: str, artifact: str, manifest: Manifest
    ) -> Manifest:
        """Completes ``staged`` with its manifest and renames it to ``entry``, replacing an old
        one."""
        with self.disk_errors():
            path = staged / artifact
            path.chmod(_READABLE)  # the umask may have left it writable by others
            manifest = manifest | {
                "key": key,
                "artifact": {
                    "file": artifact,
                    "bytes": path.stat().st_size,
                    "sha256": _sha256(path),
                },
                "created": time.time(),
            }
            whole = manifest | {"manifest_sha256": _manifest_hash(manifest)}
            (staged / MANIFEST).write_text(json.dumps(whole, indent=1) + "\n")
            (staged / MANIFEST).chmod(_READABLE)
            staged.chmod(_PRIVATE)
            while True:
                try:
                    staged.rename(entry)
                    return manifest
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                        raise
                self.remove(entry)

    def set_aside(self, entry: Path, manifest: Manifest) -> None:
        """Moves an entry to the failures, unless the name holds another entry by now, or the entry
        is in another cache."""
        if entry.parent.parent != self.root:
            return
        found = self.read(entry, check_hash=False)
        if found is None or found["created"] != manifest["created"]:
            return
        kept = self.failed / entry.name
        with self.disk_errors(), suppress(FileNotFoundError):
            shutil.rmtree(kept, ignore_errors=True)
            entry.rename(kept)

    def remove_leftovers(self) -> int:
        """Removes files that no entry needs: locks that nobody holds, and the texts of expressions,
        which tracing writes again. Returns the number of removed files."""
        unlocked = 0
        for path in self.entries(self._locks):
            lock = FileLock(path)
            with suppress(OSError):
                if lock.acquire(wait=False) and lock.is_real:
                    path.unlink()  # held, so a waiter sees that the file is gone
                    unlocked += 1
            lock.release()
        texts = self.entries(self._mods)
        for path in texts:
            path.unlink(missing_ok=True)
        return unlocked + len(texts)

    def require_for_products(self) -> None:
        """Raises CacheError unless the folder is one that ``keep_only_products`` may tidy: new,
        empty, or filled by an earlier build, and not the user's own cache."""
        if self.root == settings.cache_folder():
            raise CacheError(
                f"{self.root} is your kernel cache, which keeps what builds need; name another "
                "folder for kernels that are copied to other machines"
            )
        folders = (self.kernels, self.hosts, self.objects, self.failed, self._staging,
                   self._locks, self._mods)  # fmt: skip
        others = sorted({each.name for each in self.entries(self.root)} - {f.name for f in folders})
        if others:
            raise CacheError(
                f"the folder {self.root} has other files: {', '.join(others[:_SHOWN_FILES])}; a "
                "build there would tidy up after itself, so name a folder that is new or empty"
            )

    def keep_only_products(self) -> None:
        """Removes all that only builds need, so that the folder can be copied to other machines."""
        with self.disk_errors():
            for folder in (self.objects, self.failed, self._staging, self._locks, self._mods):
                shutil.rmtree(folder, ignore_errors=True)

    def remove(self, entry: Path) -> None:
        """Removes an entry atomically: it is renamed first, so that nobody sees half of it."""
        aside = Path(tempfile.mkdtemp(prefix="removed.", dir=self._staging))
        with suppress(FileNotFoundError):
            entry.rename(aside / entry.name)
        shutil.rmtree(aside, ignore_errors=True)

    @contextmanager
    def locked(self, entry: str, on_wait: Callable[[], None]) -> Iterator[None]:
        """Holds the lock of one entry; calls ``on_wait`` first if another process has it."""
        lock = self._lock(entry)
        with self.disk_errors():
            is_free = lock.acquire(wait=False)
        if not is_free:
            on_wait()
            with self.disk_errors():
                lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def claims(self, entries: Iterable[str]) -> Iterator[Claims]:
        """Holds the locks of those ``entries`` that are free, up to the limit of open files."""
        claimed: Claims = {}
        maximum = max_locks()
        try:
            for entry in entries:
                if len(claimed) == maximum:
                    break
                lock = self._lock(entry)
                with self.disk_errors():
                    if lock.acquire(wait=False):
                        claimed[entry] = lock
            yield claimed
        finally:
            for lock in claimed.values():
                lock.release()

    def wait_for(self, entry: str) -> None:
        """Waits until nobody builds ``entry``."""
        with self.disk_errors(), self._lock(entry):
            pass

    def _lock(self, entry: str) -> FileLock:
        return FileLock(self._locks / f"{entry}.lock")

    def sweep(self, held: str) -> None:
        """Removes staging folders of builders that died, and old failures.

        held: The entry that the caller has locked; the caller has nothing in staging yet.
        """
        for leftover in self._staging.iterdir():
            entry = leftover.name.rpartition(".")[0]
            if entry == held or self._has_no_builder(entry, leftover):
                shutil.rmtree(leftover, ignore_errors=True)
        for failure in filter(_is_old, self.failed.iterdir()):
            shutil.rmtree(failure, ignore_errors=True)

    def _has_no_builder(self, entry: str, leftover: Path) -> bool:
        """Returns whether the builder of a leftover is gone; without locks, its age decides."""
        lock = self._lock(entry)
        try:
            return lock.acquire(wait=False) and (lock.is_real or _is_old(leftover))
        except OSError:
            return False
        finally:
            lock.release()

    @contextmanager
    def disk_errors(self) -> Iterator[None]:
        """Turns disk errors into a CacheError that names the cache and what to do."""
        try:
            yield
        except OSError as error:
            raise describe(self.root, error) from error

    def full_error(self, why: str) -> CacheError:
        """Returns the error of a full disk; ``why`` is the message that reported it."""
        return full(self.root, why)


def entry_name(of: str, key: str) -> str:
    """Returns the folder's name for an artifact with this ``key``; ``of`` is for people."""
    return f"{of}-{key[:_KEY_DIGITS]}"


def has_fields(value: object, **kinds: type) -> bool:
    """Returns whether a part of a manifest is an object with at least these fields and types."""
    return isinstance(value, dict) and all(
        isinstance(value.get(name), kind) for name, kind in kinds.items()
    )


def _is_whole(manifest: Manifest) -> bool:
    """Returns whether a manifest has all required fields and names a file in its folder."""
    artifact = manifest["artifact"]
    return (
        has_fields(manifest, key=str, created=float)
        and math.isfinite(manifest["created"])
        and has_fields(artifact, file=str, bytes=int, sha256=str)
        and artifact["file"] not in ("", "..")
        and Path(artifact["file"]).name == artifact["file"]
    )


def _is_one_line(path: Path) -> bool:
    try:
        return str(path).encode().splitlines() == [bytes(path)]
    except UnicodeEncodeError:
        return False


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _OLD_SECONDS
    except OSError:
        return False


def _manifest_hash(manifest: Manifest) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
