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
    list_modules,
)
from support.tiny_build import INSTANCES
from support.workshop import HOST, HOST_FILES, KERNEL_FILES, Workshop, replace

# ---- several processes, and processes that die ----


def test_eight_processes_build_once(workshop: Workshop) -> None:
    builders = [tiny.start(workshop.csrc, count=3) for _ in range(8)]
    outputs = [builder.communicate(timeout=60) for builder in builders]
    assert [builder.returncode for builder in builders] == [0] * 8, outputs
    assert len({out for out, _ in outputs}) == 1
    assert tiny.compiled(workshop.log) == sorted([*HOST, *KERNEL_FILES[:3]])
    assert list((workshop.cache / "staging").iterdir()) == []


def test_eight_threads_build_once(workshop: Workshop) -> None:
    with ThreadPoolExecutor(8) as threads:
        built = list(threads.map(lambda _: workshop.build(3, jobs=2), range(8)))
    assert len({tuple(module.path for module in modules) for modules in built}) == 1
    assert tiny.compiled(workshop.log) == sorted([*HOST, *KERNEL_FILES[:3]])


def test_processes_with_different_sets_share_kernels_and_the_host(workshop: Workshop) -> None:
    builders = [tiny.start(workshop.csrc, count=2, first=first) for first in range(4)]
    outputs = [builder.communicate(timeout=60) for builder in builders]
    assert [builder.returncode for builder in builders] == [0] * 4, outputs
    files = tiny.compiled(workshop.log)
    assert files == sorted([*HOST, *KERNEL_FILES[:5]])


@pytest.mark.parametrize("kill_after", [1, 4])
def test_killed_build_resumes(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, kill_after: int
) -> None:
    """It keeps what was done: one of the host's two files, or the host library and two kernels."""
    killed = tiny.start(workshop.csrc, count=4, kill_after=kill_after)
    killed.communicate(timeout=60)
    assert killed.returncode == -9
    kernels = max(0, kill_after - len(HOST_FILES))
    assert len(list((workshop.cache / "objects").iterdir())) == kill_after - kernels
    assert (workshop.find_host() is not None) == (kernels > 0)
    assert len(list_modules()) == len(workshop.find(4)) == kernels

    # The second compiler has another log, because the dead builder's compiler may still write to
    # the first.
    workshop.log = workshop.root / "second.log"
    second = tiny.make_compiler(workshop.root / "second", workshop.log)
    monkeypatch.setenv("FLASHSMITH_CXX", str(second))
    assert len(workshop.new_compilations(4)) == len(HOST_FILES) + 4 - kill_after + (not kernels)
    assert list((workshop.cache / "staging").iterdir()) == []


def test_interrupt_ends_the_compilers(workshop: Workshop) -> None:
    pids = workshop.root / "pids"
    pids.touch()
    slow = f'case "$*" in *{KERNEL_FILES[0]}*) ;; *.cu*) echo $$ >> {pids}; sleep 60;; esac'
    tiny.make_compiler(workshop.compiler, workshop.log, before=slow)

    def interrupt(done: int, *_: object) -> None:
        while done > len(HOST_FILES) and len(pids.read_text().split()) < 2:
            time.sleep(0.01)  # until the others have started
        if done > len(HOST_FILES):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workshop.build(3, jobs=3, progress=interrupt)
    # Killed processes take a moment to end on a busy machine; a compiler that was left alone would
    # sleep.
    deadline = time.monotonic() + 20
    assert len(pids.read_text().split()) == 2
    while running := [pid for pid in pids.read_text().split() if tiny.is_running(pid)]:
        assert time.monotonic() < deadline, running
        time.sleep(0.1)
    assert list((workshop.cache / "staging").iterdir()) == []
    tiny.make_compiler(workshop.compiler, workshop.log)
    assert workshop.new_compilations(3) == sorted(KERNEL_FILES[1:3])


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
    for folder in ("objects", "hosts", "kernels", "staging"):
        assert list((workshop.cache / folder).iterdir()) == []
    monkeypatch.undo()


@pytest.mark.parametrize("kilobytes", [16, 48, 80, 112])
def test_full_file_system(workshop: Workshop, kilobytes: int) -> None:
    workshop.cache.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,mode=700", "tmpfs", workshop.cache]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root and CAP_SYS_ADMIN")
    try:
        with pytest.raises(CacheError, match=r"no space left .* \d+ bytes free"):
            workshop.build(7)
        cache = KernelCache()
        entries = [*cache.objects.glob("*"), *cache.hosts.glob("*"), *cache.kernels.glob("*")]
        assert all(cache.read(entry) for entry in entries)
        assert len(list_modules()) < 7
    finally:
        subprocess.run(["umount", workshop.cache], check=True)
    assert "link" in workshop.new_compilations(7)


def test_failed_compile_is_no_entry(workshop: Workshop) -> None:
    replace(workshop.csrc / "include/flashsmith/tiny.cuh", "7", "oops")
    with pytest.raises(BuildError):
        workshop.build()
    assert list_modules() == []
    assert list((workshop.cache / "kernels").iterdir()) == []


def test_the_kernels_before_a_failure_are_kept(workshop: Workshop) -> None:
    """Compilers are not stopped when another one fails."""
    wait = f"while [ ! -e {workshop.root}/failed ]; do sleep 0.1; done; sleep 0.5"
    tiny.make_compiler(
        workshop.compiler,
        workshop.log,
        before=f'case "$*" in *{KERNEL_FILES[0]}*) touch {workshop.root}/failed; exit 1;; '
        f"*{KERNEL_FILES[1]}*) {wait};; esac",
    )
    with pytest.raises(BuildError):
        workshop.build(2, jobs=2)
    assert [module.name for module in workshop.find(2)] == [INSTANCES[1].name]
