"""Modules and host libraries that cannot be loaded here: another serves, or it is rebuilt, once."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi

import support.tiny_build as tiny
from flashsmith.errors import CacheError, ToolchainError
from flashsmith.jit import HostLibrary, Module, Target, find_module, list_modules
from flashsmith.runtime import host, kernels
from support.tiny_build import EMULATOR, INSTANCES
from support.workshop import HOST_FILES, KERNEL_FILES, Workshop

# The result links, but the loader refuses it, because it needs a library that no machine has. Each
# compiler makes one of its own, because compilers run side by side.
_UNLOADABLE = """\
case " $* " in *{what}*)
  c++ -shared -x c++ /dev/null -o {nobody}
  c++ "$@" -Wl,--no-as-needed -x none {nobody}; code=$?
  rm -f {nobody}; exit $code;;
esac
"""
_A_KERNEL, _A_HOST = '" -x c++ "', '" -shared "'


def open_library(path: str) -> None:
    try:
        ctypes.CDLL(path)
    except OSError as error:
        raise RuntimeError(f"Check failed: {error}") from None


class Host:
    """The tiny host library, as tvm-ffi shows the real one."""

    def __init__(self, path: str) -> None:
        open_library(path)
        self.path = path

    def launch_cache(self) -> dict[str, Any]:
        return {}

    def load_kernel(self, kind: str, name: str, *told: Any) -> dict[str, Any]:
        open_library(told[-2])
        return {}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path)
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(workshop.cache))
    monkeypatch.setenv("FLASHSMITH_CXX", str(workshop.compiler))
    for module, names in (
        (kernels, ("build_kernels", "find_module", "find_modules")),
        (host, ("build_host", "find_host")),
    ):
        for name in names:
            function = partial(getattr(module, name), sources=workshop.sources)
            monkeypatch.setattr(module, name, function)
    monkeypatch.setattr(kernels, "_loaded", {})
    monkeypatch.setattr(host, "_module", None)
    monkeypatch.setattr(tvm_ffi, "load_module", Host)
    return workshop


@pytest.fixture
def forget(world: Workshop, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function that makes this process one that has loaded nothing."""

    def forget() -> None:
        monkeypatch.setattr(kernels, "_loaded", {})
        monkeypatch.setattr(host, "_module", None)
        world.log.unlink(missing_ok=True)

    return forget


def load(count: int = 1) -> None:
    kernels.load_kernels(INSTANCES[:count], EMULATOR)


def make_unloadable(workshop: Workshop, what: str) -> str:
    """Makes the compiler link what cannot be loaded; returns the honest compiler."""
    honest = workshop.compiler.read_text()
    lie = _UNLOADABLE.format(what=what, nobody=f"{workshop.root}/libnobody-$$.so")
    workshop.compiler.write_text(honest.replace('exec c++ "$@"', lie + 'exec c++ "$@"'))
    return honest


def change_compiler(workshop: Workshop) -> None:
    """Gives the compiler another version, so that it builds what is built already."""
    tiny.make_compiler(workshop.compiler, workshop.log, version="c++ 99.9")


def test_what_is_loaded_is_what_was_built(world: Workshop) -> None:
    load(2)
    assert tiny.compiled(world.log) == sorted([*HOST_FILES, *KERNEL_FILES[:2], "link"])
    assert all(kernels.is_loaded(instance, EMULATOR) for instance in INSTANCES[:2])


def test_a_module_that_cannot_be_loaded_is_built_once_more(
    world: Workshop, forget: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    honest = make_unloadable(world, _A_KERNEL)
    (broken,) = world.build()
    world.compiler.write_text(honest)
    forget()
    with caplog.at_level(logging.WARNING, "flashsmith"):
        load()
    assert kernels.is_loaded(INSTANCES[0], EMULATOR)
    assert tiny.compiled(world.log) == [KERNEL_FILES[0]]
    (rebuilt,) = world.find()
    assert rebuilt.path == broken.path
    assert rebuilt.manifest["created"] > broken.manifest["created"]
    assert all(f"kernel {broken.path} cannot be loaded here: Check failed" in text
               for text in caplog.messages)  # fmt: skip
    assert len([text for text in caplog.messages if "built once more" in text]) == 1


def test_a_compiler_that_goes_on_lying_is_an_error_of_this_module(world: Workshop) -> None:
    make_unloadable(world, _A_KERNEL)
    words = r"kernel .* cannot be loaded here: .*libnobody.*flashsmith build --force -k"
    with pytest.raises(CacheError, match=words):
        load()
    assert tiny.compiled(world.log).count(KERNEL_FILES[0]) == 2, "not for ever"
    assert tiny.compiled(world.log).count("link") == 1, "the host library is right"


def build_twice(world: Workshop, what: str) -> tuple[Module, HostLibrary]:
    """Returns an older module and host library, which another compiler then built so that
    ``what`` cannot be loaded; the caches have both."""
    (older,) = world.build()
    host_library = world.find_host()
    assert host_library is not None
    change_compiler(world)
    make_unloadable(world, what)
    if what == _A_HOST:
        make_host_again(world)
    else:
        world.build()
    return older, host_library


def make_host_again(world: Workshop) -> None:
    """Builds the host library though there is one."""
    away = world.root / "away"
    (world.cache / "hosts").rename(away)
    world.build(2)
    for entry in away.iterdir():
        entry.rename(world.cache / "hosts" / entry.name)


def test_a_module_that_can_be_loaded_serves_first(
    world: Workshop, forget: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The newest module cannot be loaded; it may belong to another machine, so that it stays."""
    older, _ = build_twice(world, _A_KERNEL)
    newest = find_module(INSTANCES[0], EMULATOR, sources=world.sources)
    assert newest is not None and newest.directory != older.directory
    forget()
    with caplog.at_level(logging.WARNING, "flashsmith"):
        load()
    assert kernels.is_loaded(INSTANCES[0], EMULATOR)
    (warning,) = caplog.messages
    assert f"kernel {newest.path} cannot be loaded here" in warning
    assert newest.directory.exists()
    assert tiny.compiled(world.log) == []
    found = find_module(INSTANCES[0], EMULATOR, sources=world.sources)
    assert found is not None and found.directory == older.directory


def test_a_host_library_that_can_be_loaded_serves_first(
    world: Workshop, forget: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    _, older = build_twice(world, _A_HOST)
    newest = world.find_host()
    assert newest is not None and newest.directory != older.directory
    forget()
    with caplog.at_level(logging.WARNING, "flashsmith"):
        assert host.load_host().path == str(older.path)
    (warning,) = caplog.messages
    assert f"host library {newest.path} cannot be loaded here: Check failed" in warning
    assert newest.directory.exists()
    assert tiny.compiled(world.log) == []


def test_a_host_library_that_cannot_be_loaded_is_built_once_more(
    world: Workshop, forget: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    honest = make_unloadable(world, _A_HOST)
    with pytest.raises(CacheError):
        host.load_host()
    (broken,) = (world.cache / "hosts").iterdir()
    world.compiler.write_text(honest)
    forget()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "flashsmith"):
        assert host.load_host().path == str(broken / "libflashsmith.so")
    assert tiny.compiled(world.log) == ["link"]
    assert len([text for text in caplog.messages if "built once more" in text]) == 1
    assert (world.cache / "failed" / broken.name / "manifest.json").exists()


def test_a_linker_that_goes_on_lying_is_an_error_of_the_host_library(world: Workshop) -> None:
    make_unloadable(world, _A_HOST)
    words = r"host library .* cannot be loaded here: .*libnobody.*FLASHSMITH_CXX names another"
    with pytest.raises(CacheError, match=words):
        load()
    assert tiny.compiled(world.log).count("link") == 2, "not for ever"


def test_where_building_is_off_the_loaders_words_are_told(
    world: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_unloadable(world, _A_KERNEL)
    world.build()
    monkeypatch.setenv("FLASHSMITH_BUILD", "0")
    with pytest.raises(CacheError, match=r"cannot be loaded here: .*libnobody"):
        load()


_NO_HOST = (
    "there is no host library of this version that can be loaded here, and FLASHSMITH_BUILD=0 "
    "forbids to build it; run `flashsmith build` where there is a C"
)


def test_where_building_is_off_a_missing_host_library_is_told(
    world: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHSMITH_BUILD", "0")
    for call in (host.load_host, load):
        with pytest.raises(ToolchainError, match=f"^{_NO_HOST}"):
            call()
    assert tiny.compiled(world.log) == []
    assert host._module is None


def test_where_building_is_off_the_loaders_words_of_a_host_library_are_logged(
    world: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_unloadable(world, _A_HOST)
    world.build()
    monkeypatch.setenv("FLASHSMITH_BUILD", "0")
    with (
        caplog.at_level(logging.WARNING, "flashsmith"),
        pytest.raises(ToolchainError, match=f"^{_NO_HOST}"),
    ):
        load()
    assert ["libnobody" in text for text in caplog.messages] == [True]


def _of_others(_: str) -> Any:
    raise RuntimeError("it is of others")


@pytest.mark.parametrize(
    ("loader", "words"),
    [(_of_others, "it is of others"), (lambda _: object(), "has no attribute 'load_kernel'")],
)
def test_a_host_library_that_is_none_of_ours_is_named(
    world: Workshop, monkeypatch: pytest.MonkeyPatch, loader: Callable[[str], Any], words: str
) -> None:
    monkeypatch.setattr(tvm_ffi, "load_module", loader)
    with pytest.raises(CacheError, match=rf"library .* cannot be loaded here: .*{words}"):
        load()


def test_the_launch_cache_is_connected_once(
    world: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second connection would give the calls that are remembered to a cache that nobody asks."""
    connected: list[Any] = []
    monkeypatch.setattr(host.launch_cache.__class__, "connect", lambda _, of: connected.append(of))
    load()
    load(2)
    assert connected == [host.load_host()]


def test_a_target_that_the_gpu_is_not_of_loses_no_module(world: Workshop) -> None:
    load()
    (module,) = list_modules()
    assert find_module(INSTANCES[0], Target.cuda("sm_80"), sources=world.sources) is None
    assert module.directory.exists()
