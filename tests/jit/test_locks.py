"""Locks of the cache: between processes and threads, after a fork, and without support by the
system."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from flashsmith.configs.registry import FORWARD
from flashsmith.errors import CacheError, TuningError
from flashsmith.jit import KernelCache, list_modules
from flashsmith.jit.locks import FileLock
from flashsmith.lab.tuning.session import tuning_session
from support.tiny_build import INSTANCES
from support.workshop import HOST, KERNEL_FILES, Workshop

_PATIENCE = 20.0  # seconds
_HOLD = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); "


def open_descriptors() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Yields another process that holds the lock until it is killed."""
    script = f"{_HOLD} print('held', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", script, path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_another_process_holds_it_until_it_ends(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    with holder(lock.path) as process:
        assert not lock.acquire(wait=False)
        waiting = threading.Thread(target=lock.acquire)
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        process.kill()
        waiting.join(_PATIENCE)
        assert lock.is_real and not FileLock(lock.path).acquire(wait=False)
    lock.release()
    with FileLock(lock.path) as again:
        assert again.is_real


def test_a_file_that_was_removed_while_one_waited_is_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path):
        second = FileLock(path)
        waiting = threading.Thread(target=second.acquire)
        waiting.start()
        waiting.join(0.1)
        path.unlink()
    waiting.join(_PATIENCE)
    assert second.is_real and path.exists()
    assert not FileLock(path).acquire(wait=False), "both hold the file that is there now"
    second.release()


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(open_descriptors())
    with FileLock(tmp_path / "lock"):
        for _ in range(5):
            assert not FileLock(tmp_path / "lock").acquire(wait=False)
    assert len(open_descriptors()) == before


# ---- fork ----


def test_a_child_keeps_no_lock_of_its_parent(tmp_path: Path) -> None:
    """Otherwise the child would hold the lock after its parent has died, and wait for itself."""
    lock = FileLock(tmp_path / "lock")
    assert lock.acquire()
    ready, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"!")
        os.read(go_on[0], 1)
        os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"!"
        assert not FileLock(lock.path).acquire(wait=False), "the parent holds it still"
        # The system closes the file like this when the parent dies. LOCK_UN would release the
        # child's too.
        descriptor, lock._descriptor = lock._descriptor, None
        assert descriptor is not None
        os.close(descriptor)
        assert FileLock(lock.path).acquire(wait=False)
    finally:
        os.write(go_on[1], b"!")
        os.waitpid(child, 0)
        lock.release()


# ---- file systems without locks ----


def refuse_with(number: int) -> Callable[[int, int], None]:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    return flock


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_where_there_are_no_locks_nobody_waits(
    workshop: Workshop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    """Lock files that were copied there with a cache do not make a build wait either."""
    workshop.build(2)
    left = [*workshop.cache.rglob("*.lock")]
    assert left
    for folder in ("objects", "hosts", "kernels"):
        for entry in (workshop.cache / folder).iterdir():
            KernelCache().remove(entry)
    monkeypatch.setattr(fcntl, "flock", refuse_with(number))
    with caplog.at_level(logging.WARNING, "flashsmith"):
        assert workshop.new_compilations(2) == sorted([*HOST, *KERNEL_FILES[:2]])
    (told,) = (text for text in caplog.messages if "has no file locks" in text)
    assert str(workshop.cache) in told


def test_without_locks_leftovers_go_when_they_are_old(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unknown without locks whether the builder of a file is alive."""
    cache = KernelCache()
    cache.create()
    monkeypatch.setattr(fcntl, "flock", refuse_with(errno.ENOSYS))
    with cache.staging("alive") as young, cache.staging("dead") as old:
        os.utime(old, (0, 0))
        cache.sweep(held="another")
        assert young.exists() and not old.exists()


def test_tuning_waits_for_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = pytest.raises(TuningError, match="another process is tuning")
    with (
        holder(tmp_path / ".table.csv.lock"),
        refused,
        tuning_session(FORWARD, tmp_path / "table.csv", {}),
    ):
        pass
    monkeypatch.setattr(fcntl, "flock", refuse_with(errno.ENOSYS))
    with tuning_session(FORWARD, tmp_path / "table.csv", {}):
        pass


# ---- advice for other errors ----


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EIO, r"Input/output error; .*another file system"),
        (errno.ESTALE, r"Stale file handle; .*another file system"),
        (errno.EACCES, "set FLASHSMITH_CACHE_DIR to a directory that you can write"),
        (errno.EROFS, "set FLASHSMITH_CACHE_DIR to a directory that you can write"),
        (errno.EMFILE, r"too many open files: .*`ulimit -n`"),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else "",
)
def test_each_error_of_a_disk_has_its_advice(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    monkeypatch.setattr(fcntl, "flock", refuse_with(number))
    with pytest.raises(CacheError, match=advice):
        workshop.build()


@contextmanager
def few_descriptors(free: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(open_descriptors())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + free + 1, before[1]))
    taken = []
    with suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    for _ in range(free):
        os.close(taken.pop())
    try:
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_build_of_many_kernels_needs_few_descriptors(workshop: Workshop) -> None:
    """One lock a kernel would exceed a shell's usual limit for a whole family."""
    count = len(INSTANCES)
    with few_descriptors(12):
        modules = workshop.build(count)
    assert len(modules) == count
    assert {each.path for each in list_modules()} == {each.path for each in modules}


@pytest.mark.parametrize("free", [1, 2, 4, 6, 8])
def test_without_descriptors_the_limit_is_named(workshop: Workshop, free: int) -> None:
    """The limit is named whichever file is the first that cannot be opened."""
    KernelCache().create()
    with few_descriptors(free):
        try:
            workshop.build(len(INSTANCES))
        except CacheError as error:
            assert re.match(r"too many open files: .*ulimit -n", str(error))
        else:
            assert free > 2
    assert len(workshop.build(len(INSTANCES))) == len(INSTANCES)


def test_a_sound_entry_is_not_thought_absent_for_want_of_descriptors(workshop: Workshop) -> None:
    (module,) = workshop.build()
    for directory in (module.directory, workshop.host.directory):
        with few_descriptors(0), pytest.raises(CacheError, match="too many open files"):
            KernelCache().read(directory)
