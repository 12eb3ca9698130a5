"""The kernel cache: several processes, processes that die, and a full disk."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import support.tiny_build as tiny
from flashsmith.errors import BuildError, CacheError
from flashsmith.jit import (
    KernelCache,
    list_libraries,
)
from support.tiny_build import INSTANCES
from support.workshop import HOST_FILES, KERNEL_FILES, Workshop, replace

# ---- several processes, and processes that die ----


def test_eight_processes_build_once(workshop: Workshop) -> None:
    builders = [tiny.start(workshop.csrc, count=3) for _ in range(8)]
    outputs = [builder.communicate(timeout=60) for builder in builders]
    assert [builder.returncode for builder in builders] == [0] * 8, outputs
    assert len({out for out, _ in outputs}) == 1
    assert tiny.compiled(workshop.log) == sorted([*HOST_FILES, *KERNEL_FILES[:3], "link"])
    assert list((workshop.cache / "staging").iterdir()) == []


def test_eight_threads_build_once(workshop: Workshop) -> None:
    with ThreadPoolExecutor(8) as threads:
        built = list(threads.map(lambda _: workshop.build(3, jobs=2).path, range(8)))
    assert len(set(built)) == 1
    assert tiny.compiled(workshop.log) == sorted([*HOST_FILES, *KERNEL_FILES[:3], "link"])


def test_processes_with_different_libraries_share_objects(workshop: Workshop) -> None:
    builders = [tiny.start(workshop.csrc, count=2, first=first) for first in range(4)]
    outputs = [builder.communicate(timeout=60) for builder in builders]
    assert [builder.returncode for builder in builders] == [0] * 4, outputs
    files = tiny.compiled(workshop.log)
    assert files.count("memory.cpp") == 1
    assert [files.count(name) for name in KERNEL_FILES[:5]] == [1] * 5
    assert files.count("link") == 4


def test_killed_build_resumes(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = tiny.start(workshop.csrc, count=4, kill_after=3)
    killed.communicate(timeout=60)
    assert killed.returncode == -9
    assert len(list((workshop.cache / "objects").iterdir())) == 3
    assert list_libraries() == []
    assert workshop.find() is None

    # The second compiler has another log, because the dead builder's compiler may still write to
    # the first.
    workshop.log = workshop.root / "second.log"
    second = tiny.make_compiler(workshop.root / "second", workshop.log)
    monkeypatch.setenv("FLASHSMITH_CXX", str(second))
    assert len(workshop.new_compilations(4)) == 6 - 3 + 1  # the other objects, and the link
    assert list((workshop.cache / "staging").iterdir()) == []


def test_interrupt_ends_the_compilers(workshop: Workshop) -> None:
    pids = workshop.root / "pids"
    slow = f'case "$*" in *.cu*) echo $$ >> {pids}; sleep 60;; esac'
    tiny.make_compiler(workshop.compiler, workshop.log, before=slow)

    def interrupt(done: int, *_: object) -> None:
        while done and not pids.exists():  # a slow compiler has started beside the host's files
            pass
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workshop.build(2, jobs=3, progress=interrupt)
    # Killed processes take a moment to end on a busy machine; a compiler that was left alone would
    # sleep.
    deadline = time.monotonic() + 20
    while running := [pid for pid in pids.read_text().split() if tiny.is_running(pid)]:
        assert time.monotonic() < deadline, running
        time.sleep(0.1)
    assert list((workshop.cache / "staging").iterdir()) == []
    tiny.make_compiler(workshop.compiler, workshop.log)
    assert KERNEL_FILES[0] in workshop.new_compilations(2)


def test_leftovers_of_living_builders_stay(workshop: Workshop) -> None:
    cache = KernelCache()
    cache.create()
    with cache.locked("alive", lambda: None), cache.staging("alive") as alive:
        with cache.staging("dead") as dead:
            cache.sweep(held="another")
            assert not dead.exists()
        assert alive.exists()


# ---- a full disk ----


def test_compiler_without_space(workshop: Workshop) -> None:
    fail = 'echo "as: x.o: No space left on device" >&2; exit 1'
    tiny.make_compiler(workshop.compiler, workshop.log, before=fail)
    with pytest.raises(CacheError, match=rf"{re.escape(str(workshop.cache))} has \d+ bytes free"):
        workshop.build()
    assert list((workshop.cache / "staging").iterdir()) == []


def test_manifest_without_space(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text = Path.write_text

    def refuse(path: Path, *arguments: object, **options: object) -> int:
        if path.name == "manifest.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_text(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(CacheError, match="bytes free"):
        workshop.build()
    for folder in ("objects", "libraries", "staging"):
        assert list((workshop.cache / folder).iterdir()) == []
    monkeypatch.undo()


@pytest.mark.parametrize("kilobytes", [16, 48, 80])
def test_full_file_system(workshop: Workshop, kilobytes: int) -> None:
    workshop.cache.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,mode=700", "tmpfs", workshop.cache]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root and CAP_SYS_ADMIN")
    try:
        with pytest.raises(CacheError, match=r"no space left .* \d+ bytes free"):
            workshop.build(7)
        entries = [*KernelCache().objects.glob("*"), *KernelCache().libraries.glob("*")]
        assert all(KernelCache().read(entry) for entry in entries)
        assert list_libraries() == []
    finally:
        subprocess.run(["umount", workshop.cache], check=True)
    assert "link" in workshop.new_compilations(7)


def test_failed_compile_is_no_entry(workshop: Workshop) -> None:
    replace(workshop.csrc / "include/flashsmith/tiny.cuh", "7", "oops")
    with pytest.raises(BuildError):
        workshop.build()
    assert list_libraries() == []
    assert not list((workshop.cache / "objects").glob(f"{INSTANCES[0].slug}-*"))
