"""Libraries that cannot be loaded here: another library serves, or one is rebuilt, once."""

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
from flashsmith.errors import CacheError
from flashsmith.jit import (
    Library,
    SourceTree,
    Target,
    build_library,
    find_library,
    find_tvm_ffi,
    list_libraries,
)
from flashsmith.runtime import kernels
from support.tiny_build import EMULATOR, INSTANCES
from support.workshop import KERNEL_FILES, Workshop

# The result links, but the loader refuses it, because it needs a library that no machine has.
_UNLOADABLE = 'case " $* " in *" -shared "*) set -- "$@" -Wl,--no-as-needed {};; esac'


class Module:
    """A loaded library of the tiny source tree, as tvm-ffi shows a library of kernels."""

    def __init__(self, path: str) -> None:
        ctypes.CDLL(str(find_tvm_ffi().library / "libtvm_ffi.so"))
        try:
            ctypes.CDLL(path)
        except OSError as error:
            raise RuntimeError(f"Check failed: {error}") from None
        self.loaded = next(each for each in list_libraries() if str(each.path) == path)

    def find_kernel(self, name: str, *fields: Any) -> dict[str, Any] | None:
        names = [kernel["name"] for kernel in self.loaded.kernels.values()]
        return {} if name in names else None


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path)
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(workshop.cache))
    monkeypatch.setenv("FLASHSMITH_CXX", str(workshop.compiler))
    sources = SourceTree(workshop.csrc, tiny.generate)
    for function in (build_library, find_library):
        monkeypatch.setattr(kernels, function.__name__, partial(function, sources=sources))
    for name in ("_loaded", "_found"):
        monkeypatch.setattr(kernels, name, {})
    monkeypatch.setattr(tvm_ffi, "load_module", Module)
    return workshop


def load(count: int = 1) -> Library | None:
    return kernels.load_kernels(INSTANCES[:count], EMULATOR)


def make_unloadable(workshop: Workshop) -> str:
    """Makes the compiler link a library that cannot be loaded; returns the honest compiler."""
    nobody = workshop.root / "libnobody.so"
    honest = workshop.compiler.read_text()
    lie = _UNLOADABLE.format(nobody)
    lie = f"c++ -shared -x c++ /dev/null -o {nobody}\n{lie}"
    lie += f'\nc++ "$@"; code=$?; rm -f {nobody}; exit $code\n'
    workshop.compiler.write_text(honest.replace('exec c++ "$@"', lie))
    return honest


def test_what_is_loaded_is_what_was_built(world: Workshop) -> None:
    assert load() is not None
    assert tiny.compiled(world.log).count("link") == 1
    assert kernels.is_loaded(INSTANCES[0], EMULATOR)


def test_a_library_that_cannot_be_loaded_is_built_once_more(
    world: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    honest = make_unloadable(world)
    broken = build_library(INSTANCES[:1], EMULATOR, sources=SourceTree(world.csrc, tiny.generate))
    world.compiler.write_text(honest)
    world.log.unlink()
    with caplog.at_level(logging.WARNING, "flashsmith"):
        library = load()
    assert library is not None and library.directory == broken.directory
    assert tiny.compiled(world.log) == ["link"]
    assert (world.cache / "failed" / broken.directory.name / "manifest.json").exists()
    assert all("cannot be loaded here: Check failed" in text for text in caplog.messages)


def test_a_compiler_that_goes_on_lying_is_an_error_of_this_library(world: Workshop) -> None:
    make_unloadable(world)
    words = r"library .* cannot be loaded here: .*libnobody.*flashsmith build --force"
    with pytest.raises(CacheError, match=words):
        load()
    assert tiny.compiled(world.log).count("link") == 2, "it is built once more, not for ever"
    assert tiny.compiled(world.log).count(KERNEL_FILES[0]) == 1


def test_one_that_can_be_loaded_serves_first(
    world: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest library cannot be loaded; it may belong to another machine, so that it stays."""
    older = load(2)
    assert older is not None
    make_unloadable(world)
    newer = build_library(INSTANCES[:1], EMULATOR, sources=SourceTree(world.csrc, tiny.generate))
    for name in ("_loaded", "_found"):
        monkeypatch.setattr(kernels, name, {})
    world.log.unlink()
    found = load()
    assert found is not None and found.directory == older.directory
    assert newer.directory.exists()
    assert tiny.compiled(world.log) == []


def test_where_building_is_off_the_loaders_words_are_told(
    world: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_unloadable(world)
    build_library(INSTANCES[:1], EMULATOR, sources=SourceTree(world.csrc, tiny.generate))
    monkeypatch.setenv("FLASHSMITH_BUILD", "0")
    with pytest.raises(CacheError, match=r"cannot be loaded here: .*libnobody"):
        load()


def _of_others(_: str) -> Any:
    raise RuntimeError("it is of others")


@pytest.mark.parametrize(
    ("loader", "words"),
    [(_of_others, "it is of others"), (lambda _: object(), "has no attribute 'find_kernel'")],
)
def test_a_library_that_is_none_of_ours_is_named(
    world: Workshop, monkeypatch: pytest.MonkeyPatch, loader: Callable[[str], Any], words: str
) -> None:
    monkeypatch.setattr(tvm_ffi, "load_module", loader)
    with pytest.raises(CacheError, match=rf"library .* cannot be loaded here: .*{words}"):
        load()


def test_a_target_that_the_gpu_is_not_of_loses_no_library(world: Workshop) -> None:
    library = load()
    assert library is not None
    assert find_library(INSTANCES[:1], Target.cuda("sm_80")) is None
    assert library.directory.exists()
