"""The location of the kernel cache: unknown homes, closed folders, full disks, and no memory."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import support.tiny_build as tiny
from flashsmith import settings
from flashsmith.configs.registry import FORWARD
from flashsmith.errors import BuildError, CacheError, ToolchainError, TuningError
from flashsmith.jit import KernelCache, disk, find_cxx, list_modules
from flashsmith.selection.choose import find_tables, forget_tables
from flashsmith.selection.tables import user_table_path
from support.permissions import obeying_permissions
from support.tables import H200
from support.workshop import Workshop

# ---- homes ----


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that the user has no entry in the password file, as in a container with a free user
    id."""

    def refuse(number: int) -> None:
        raise KeyError(number)

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for setting in (settings.CACHE_DIR, settings.TUNED):
        monkeypatch.delenv(setting.name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", refuse)
    forget_tables()


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("use", [KernelCache, list_modules, settings.cache_folder])
def test_without_a_home_the_variable_is_named(use: Callable[[], object]) -> None:
    words = r"cache directory is not known: .* no home directory; set HOME, or FLASHSMITH_CACHE_DIR"
    with pytest.raises(CacheError, match=words):
        use()


@pytest.mark.usefixtures("homeless")
def test_without_a_home_there_is_no_table_of_the_users() -> None:
    with pytest.raises(TuningError, match="set HOME, or FLASHSMITH_TUNED"):
        user_table_path(H200)
    sources, refused = find_tables(FORWARD, H200)
    assert all(source.title == "shipped table" for source in sources)
    assert any("no home directory" in text for text in refused)
    forget_tables()


@pytest.mark.parametrize("setting", [settings.CACHE_DIR, settings.TUNED, settings.NVCC])
def test_the_home_of_nobody_is_no_path(
    monkeypatch: pytest.MonkeyPatch, setting: settings.Setting[Path]
) -> None:
    monkeypatch.setenv(setting.name, "~no-such-user/x")
    with pytest.raises(ValueError, match=rf"{setting.name}='~no-such-user/x' is not valid"):
        setting.get()


def test_a_compiler_in_the_home_of_nobody_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.CXX.name, "~no-such-user/c++")
    with pytest.raises(ToolchainError, match="'~no-such-user/c\\+\\+', which is no executable"):
        find_cxx()


# ---- paths ----


@pytest.mark.parametrize("name", ["caf\udce9", "a\nb", "a\rb"])
def test_a_path_that_no_compiler_is_given_is_refused(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(settings.CACHE_DIR.name, str(workshop.root / name))
    for use in (workshop.build, workshop.find, workshop.find_host, list_modules):
        with pytest.raises(CacheError, match=r"path of the kernel cache .* has a line break"):
            use()
    assert not (workshop.root / name).exists()


@pytest.mark.parametrize("name", ["with blank", "caf\u00e9", "a$b'c\"d", "a:b|c", "-x"])
def test_any_other_path_is_taken(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(settings.CACHE_DIR.name, str(workshop.root / name))
    assert tiny.sum_of_kernels(workshop.build(), workshop.sources) == 7


RUNS = ["$(touch owned)", "`touch owned`", "; touch owned #", "& touch owned &", "'; touch owned;'"]


@pytest.mark.parametrize("name", RUNS)
def test_no_path_is_run(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The names of the cache, the sources and the compiler are never run as commands."""
    folder = workshop.root / name
    folder.mkdir()
    monkeypatch.setenv(settings.CACHE_DIR.name, str(folder / "cache"))
    monkeypatch.setenv(settings.CXX.name, str(workshop.compiler.rename(folder / "c++")))
    workshop.csrc = workshop.csrc.rename(folder / "csrc")
    monkeypatch.chdir(workshop.root)
    assert tiny.sum_of_kernels(workshop.build(2), workshop.sources) == 14
    assert not [*workshop.root.rglob("owned")]


# ---- folders of other users ----


@pytest.mark.parametrize("name", [".", "kernels", "hosts"])
def test_a_cache_that_cannot_be_read_is_named(workshop: Workshop, name: str) -> None:
    """A build under `sudo` leaves such folders."""
    workshop.build()
    folder = workshop.cache / name
    folder.chmod(0o000)
    try:
        with obeying_permissions():
            for use in (workshop.find_host,) if name == "hosts" else (workshop.find, list_modules):
                with pytest.raises(CacheError, match=r"cannot be read: .*chown -R.*CACHE_DIR"):
                    use()
    finally:
        folder.chmod(0o700)


# ---- disks and memory ----


def test_a_full_disk_is_named_by_the_compiler(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The full disk may be that of TMPDIR, which Python's own choice skips."""
    monkeypatch.setenv("TMPDIR", str(workshop.root))
    said = "fatal error: error writing to /small/ccq.s: No space left on device"
    tiny.make_compiler(workshop.compiler, workshop.log, before=f'echo "{said}" >&2; exit 1')
    with pytest.raises(CacheError, match=re.escape(said)) as caught:
        workshop.build()
    assert f"temporary directory of compilers {workshop.root} " in str(caught.value)


def test_a_disk_without_room_for_files_says_so(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(workshop.root)
    monkeypatch.setattr(
        os, "statvfs", lambda _: os.statvfs_result((*real[:5], 100, 0, 0, *real[8:]))
    )
    assert "bytes free and room for 0 files" in str(disk.full(workshop.cache, "full"))


OUT_OF_MEMORY = [
    "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes",
    "virtual memory exhausted: Cannot allocate memory",
    "ptxas fatal   : Memory allocation failure",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "collect2: fatal error: ld terminated with signal 9 [Killed]",
]


@pytest.mark.parametrize("said", OUT_OF_MEMORY)
@pytest.mark.parametrize("step", ["-c", "-shared", "-x"])  # of host files, host, kernels
def test_a_compiler_without_memory_gets_advice(workshop: Workshop, said: str, step: str) -> None:
    honest = workshop.compiler.read_text()
    fail = f'case " $* " in *" {step} "*) echo "{said}" >&2; exit 1;; esac\nexec '
    workshop.compiler.write_text(honest.replace("exec ", fail))
    with pytest.raises(BuildError, match="for want of memory: lower FLASHSMITH_JOBS"):
        workshop.build()


def test_a_probe_that_failed_is_tried_again(workshop: Workshop) -> None:
    """The system may have killed the compiler for lack of memory."""
    honest = workshop.compiler.read_text()
    killed = 'case " $* " in *" -fsyntax-only "*) kill -9 $$;; esac\nexec '
    workshop.compiler.write_text(honest.replace("exec ", killed))
    before = workshop.compiler.stat()
    with pytest.raises(ToolchainError, match=r"could not be tried: .*signal 9; .*FLASHSMITH_JOBS"):
        workshop.build()
    # The new file agrees with the old one in all that a probe remembers.
    workshop.compiler.write_text(honest.ljust(before.st_size))
    os.utime(workshop.compiler, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert workshop.compiler.stat().st_size == before.st_size
    assert tiny.sum_of_kernels(workshop.build(), workshop.sources) == 7
