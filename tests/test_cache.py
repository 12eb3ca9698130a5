"""The kernel cache: what its keys depend on, and what it survives."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import build_helpers as tiny
from build_helpers import EMULATOR, INSTANCES
from flashsmith.errors import BuildError, CacheError, ToolchainError
from flashsmith.jit import (
    KernelCache,
    Library,
    SourceTree,
    build_library,
    find_library,
    list_libraries,
    units,
)

_CAP_DAC_OVERRIDE = 1


@dataclass
class Workshop:
    """A cache, a tiny source tree, and a compiler that counts."""

    root: Path

    def __post_init__(self) -> None:
        self.cache = self.root / "cache"
        self.log = self.root / "compiler.log"
        self.csrc = tiny.make_csrc(self.root / "csrc")
        self.compiler = tiny.make_compiler(self.root / "cxx", self.log)

    def build(self, count: int = 1, **options: object) -> Library:
        sources = SourceTree(self.csrc, tiny.generate)
        return build_library(INSTANCES[:count], EMULATOR, sources=sources, **options)  # type: ignore[arg-type]

    def find(self, count: int = 1) -> Library | None:
        return find_library(
            INSTANCES[:count], EMULATOR, sources=SourceTree(self.csrc, tiny.generate)
        )

    def new_compilations(self, count: int = 1, **options: object) -> list[str]:
        self.log.unlink(missing_ok=True)
        library = self.build(count, **options)
        assert tiny.sum_of_kernels(library) == 7 * count
        return tiny.compiled(self.log)


HOST_FILES = ["memory.cpp", "registry.cpp"]
KERNEL_FILES = [f"{instance.slug}.cu" for instance in INSTANCES]


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path)
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(workshop.cache))
    monkeypatch.setenv("FLASHSMITH_CXX", str(workshop.compiler))
    return workshop


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# ---- keys ----


def test_second_build_compiles_nothing(workshop: Workshop) -> None:
    assert workshop.new_compilations() == sorted([*HOST_FILES, KERNEL_FILES[0], "link"])
    assert workshop.new_compilations() == []


def test_larger_set_compiles_only_what_is_new(workshop: Workshop) -> None:
    workshop.build(1)
    # The registry reads the generated map of all kernels, the rest stays.
    assert workshop.new_compilations(3) == sorted(["link", "registry.cpp", *KERNEL_FILES[1:3]])


def test_order_and_repeats_of_the_set_do_not_matter(workshop: Workshop) -> None:
    sources = SourceTree(workshop.csrc, tiny.generate)
    one = build_library(INSTANCES[:3], EMULATOR, sources=sources)
    other = build_library([*INSTANCES[2::-1], INSTANCES[1]], EMULATOR, sources=sources)
    assert one.path == other.path


def test_force_compiles_everything_again(workshop: Workshop) -> None:
    first = workshop.new_compilations(2)
    assert workshop.new_compilations(2, force=True) == first


def test_moved_sources_hit(workshop: Workshop) -> None:
    workshop.build()
    workshop.csrc = workshop.csrc.rename(workshop.root / "a b$c")
    assert workshop.new_compilations() == []


def _change_header(workshop: Workshop, _: pytest.MonkeyPatch) -> None:
    header = workshop.csrc / "include/flashsmith/tiny.cuh"
    header.write_text(header.read_text() + "// a comment\n")


def _add_header(workshop: Workshop, _: pytest.MonkeyPatch) -> None:
    (workshop.csrc / "emulator/new.h").write_text("#pragma once\n")


def _change_flag(_: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "_EMULATOR_FLAGS", (*units._EMULATOR_FLAGS, "-DOTHER"))


def _change_compiler(workshop: Workshop, _: pytest.MonkeyPatch) -> None:
    tiny.make_compiler(workshop.compiler, workshop.log, version="c++ (Other) 99.1")


def _change_format(_: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "FORMAT", units.FORMAT + 1)


Change = Callable[[Workshop, pytest.MonkeyPatch], None]


@pytest.mark.parametrize(
    "change", [_change_header, _add_header, _change_flag, _change_compiler, _change_format]
)
def test_change_that_concerns_every_file_misses(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    everything = workshop.new_compilations()
    change(workshop, monkeypatch)
    assert workshop.new_compilations() == everything


def test_change_of_one_text_compiles_that_file(workshop: Workshop) -> None:
    workshop.build(2)
    replace(workshop.csrc / "host/registry.cpp", "return SUM", "return SUM + 0")
    assert workshop.new_compilations(2) == ["link", "registry.cpp"]


def test_change_of_link_flags_only_links(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.build()
    monkeypatch.setattr(units, "_LINK_FLAGS", (*units._LINK_FLAGS, "-Wl,-O1"))
    assert workshop.new_compilations() == ["link"]


# ---- looking up without building ----


def test_find_library_serves_a_subset(workshop: Workshop) -> None:
    assert workshop.find() is None
    library = workshop.build(3)
    found = workshop.find(2)
    assert found is not None
    assert found.path == library.path
    assert set(found.kernels) == {instance.slug for instance in INSTANCES[:3]}
    assert workshop.find(4) is None


def test_find_library_refuses_other_sources(workshop: Workshop) -> None:
    workshop.build()
    replace(workshop.csrc / "include/flashsmith/tiny.cuh", "7", "8")
    assert workshop.find() is None


def test_find_library_refuses_a_damaged_one(workshop: Workshop) -> None:
    flip_last_byte(workshop.build().path)
    assert workshop.find() is None


def test_cached_library_needs_no_compiler(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = workshop.build()
    monkeypatch.setenv("FLASHSMITH_CXX", "/nowhere/c++")
    assert workshop.build().path == library.path
    with pytest.raises(ToolchainError, match="/nowhere/c"):
        workshop.build(2)


def test_list_libraries_newest_first(workshop: Workshop) -> None:
    assert list_libraries() == []
    paths = [workshop.build(count).path for count in (1, 2)]
    assert [library.path for library in list_libraries()] == paths[::-1]


# ---- damage ----


def truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def make_writable_by_others(path: Path) -> None:
    path.chmod(0o666)


DAMAGES: list[Callable[[Path], None]] = [
    truncate,
    flip_last_byte,
    Path.unlink,
    make_writable_by_others,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_library_is_linked_again(
    workshop: Workshop, damage: Callable[[Path], None]
) -> None:
    damage(workshop.build().path)
    assert workshop.new_compilations() == ["link"]
    assert workshop.new_compilations() == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_object_is_compiled_again(
    workshop: Workshop, damage: Callable[[Path], None]
) -> None:
    shutil.rmtree(workshop.build().directory)
    (damaged,) = (workshop.cache / "objects").glob(f"{INSTANCES[0].slug}-*/*.o")
    damage(damaged)
    assert workshop.new_compilations() == sorted([KERNEL_FILES[0], "link"])


@pytest.mark.parametrize(
    "garbage", ["", "{", "[]", "null", '{"artifact": 1}', '{"artifact": {"file": "x"}}', "\0\xff"]
)
def test_garbage_manifest_is_rebuilt(workshop: Workshop, garbage: str) -> None:
    (workshop.build().directory / "manifest.json").write_text(garbage)
    assert list_libraries() == []
    assert workshop.new_compilations() == ["link"]


def test_manifest_that_was_edited_is_rebuilt(workshop: Workshop) -> None:
    directory = workshop.build().directory
    replace(directory / "manifest.json", '"target"', '"tarjet"')
    assert list_libraries() == []
    assert workshop.new_compilations() == ["link"]


def test_file_in_place_of_an_entry_is_replaced(workshop: Workshop) -> None:
    directory = workshop.build().directory
    shutil.rmtree(directory)
    directory.write_text("not a folder")
    assert workshop.new_compilations() == ["link"]


# ---- who may write ----


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_cache_that_others_can_write_is_refused(workshop: Workshop, mode: int) -> None:
    workshop.build()
    workshop.cache.chmod(mode)
    for use in (workshop.build, workshop.find, list_libraries):
        with pytest.raises(CacheError, match=f"chmod 700 {re.escape(str(workshop.cache))}"):
            use()


def test_cache_of_somebody_else_is_refused(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.build()
    if os.geteuid() == 0:
        os.chown(workshop.cache, 4242, 4242)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(CacheError, match="belongs to user"):
        workshop.build()


def test_cache_is_private_whatever_the_umask(workshop: Workshop) -> None:
    before = os.umask(0)
    try:
        library = workshop.build()
    finally:
        os.umask(before)
    for folder in (workshop.cache, workshop.cache / "objects", library.directory):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert workshop.new_compilations() == []  # nothing counts as foreign


def test_file_in_place_of_the_cache(workshop: Workshop) -> None:
    workshop.cache.write_text("")
    with pytest.raises(CacheError, match="not a directory"):
        workshop.build()


@pytest.mark.parametrize("written", ["relative/cache", "~/cache"])
def test_cache_directory_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "relative"))
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", written)
    assert KernelCache().root == tmp_path / "relative" / "cache"


@contextmanager
def obeying_permissions() -> Iterator[None]:
    """Root, who may write everywhere, puts that capability aside; everybody else has none."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this thread
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the high halves
    assert libc.capget(header, sets) == 0
    before = sets[0]
    sets[0] &= ~(1 << _CAP_DAC_OVERRIDE)
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = before
        assert libc.capset(header, sets) == 0


def test_read_only_cache_serves_what_it_has(workshop: Workshop) -> None:
    library = workshop.build()
    entries = [workshop.cache, *workshop.cache.rglob("*")]
    for path in entries:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        with obeying_permissions():
            assert workshop.build().path == library.path
            with pytest.raises(CacheError, match=r"cannot be written.*FLASHSMITH_CACHE_DIR"):
                workshop.build(2)
    finally:
        for path in entries:
            path.chmod(path.stat().st_mode | 0o200)


# ---- several processes, and their deaths ----


def test_eight_processes_build_once(workshop: Workshop) -> None:
    builders = [tiny.start(workshop.csrc, count=3) for _ in range(8)]
    outputs = [builder.communicate(timeout=60) for builder in builders]
    assert [builder.returncode for builder in builders] == [0] * 8, outputs
    assert len({out for out, _ in outputs}) == 1
    assert tiny.compiled(workshop.log) == sorted([*HOST_FILES, *KERNEL_FILES[:3], "link"])
    assert list((workshop.cache / "staging").iterdir()) == []


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

    # Another log: the compiler that the dead builder had started may still write into the first.
    workshop.log = workshop.root / "second.log"
    second = tiny.make_compiler(workshop.root / "second", workshop.log)
    monkeypatch.setenv("FLASHSMITH_CXX", str(second))
    assert len(workshop.new_compilations(4)) == 6 - 3 + 1  # the other objects, and the link
    assert list((workshop.cache / "staging").iterdir()) == []


def test_interrupt_ends_the_compilers(workshop: Workshop) -> None:
    pids = workshop.root / "pids"
    slow = f'case "$*" in *.cu*) echo $$ >> {pids}; sleep 60;; esac'
    tiny.make_compiler(workshop.compiler, workshop.log, before=slow)

    def interrupt(*_: object) -> None:
        while not pids.exists():  # a slow compiler has started beside the host's files
            pass
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workshop.build(2, jobs=3, progress=interrupt)
    assert [pid for pid in pids.read_text().split() if tiny.is_running(pid)] == []
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
