"""Headers that change while a build reads them: no object stays under the key of another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import build_helpers as tiny
from build_helpers import EMULATOR, INSTANCES
from flashsmith.errors import BuildError
from flashsmith.jit import KernelCache, Library, SourceTree, build_library
from flashsmith.jit.headers import Headers, included
from flashsmith.jit.lint import may_release
from flashsmith.jit.units import find_toolchain, plan_units

HEADER = "include/flashsmith/tiny.cuh"


def write_during_compile(kernels: str, commands: str) -> str:
    """Shell for tiny.make_compiler: what somebody does while these files are compiled, and those
    that were compiled before are in the cache."""
    return f'case "$*" in *{kernels}*) sleep 2; {commands};; esac'


def build(csrc: Path) -> Library:
    sources = SourceTree(csrc, tiny.generate)
    return build_library(INSTANCES[:1], EMULATOR, jobs=1, sources=sources)


@pytest.fixture
def csrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return tiny.make_csrc(tmp_path / "csrc")


def use_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    compiler = tiny.make_compiler(tmp_path / "cxx", tmp_path / "log", before)
    monkeypatch.setenv("FLASHSMITH_CXX", str(compiler))


@pytest.mark.parametrize("is_restored", [False, True])
def test_an_object_of_a_header_that_changed_is_not_kept(
    csrc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restored: bool
) -> None:
    """Restored or not: the compiler below reads 8, the key was made for 7."""
    header = csrc / HEADER
    restore = f'c++ "$@"; sed -i s/8/7/ {header}; exit 0' if is_restored else ":"
    writes = write_during_compile(INSTANCES[0].slug, f"sed -i s/7/8/ {header}; {restore}")
    use_compiler(tmp_path, monkeypatch, writes)
    with pytest.raises(BuildError) as caught:
        build(csrc)
    assert f"{header} changed while {INSTANCES[0].name} was compiled" in str(caught.value)
    assert "build again" in str(caught.value)
    cache = KernelCache()
    assert not [e for e in cache.entries(cache.objects) if e.name.startswith(INSTANCES[0].slug)]
    assert cache.entries(cache.libraries) == []

    use_compiler(tmp_path, monkeypatch, ":")
    assert tiny.sum_of_kernels(build(csrc)) == (7 if is_restored else 8)


def test_headers_of_another_family_may_change(csrc: Path) -> None:
    other = csrc / "include/flashsmith/sm90/other.cuh"  # INSTANCES are of the sm80 family
    other.parent.mkdir()
    other.write_text("// before\n")
    generated = tiny.generate(INSTANCES[:1])
    units = plan_units(INSTANCES[:1], generated, EMULATOR, find_toolchain(EMULATOR), csrc)
    other.write_text("// after\n")
    changed = {unit.name: unit.headers.changed() for unit in units}
    assert changed.pop(INSTANCES[0].slug) == []
    assert set(map(tuple, changed.values())) == {(other,)}  # the host may include all


def test_every_way_to_change_is_seen(tmp_path: Path) -> None:
    names = ("same", "written", "replaced", "removed", "touched")
    paths = [tmp_path / f"{name}.cuh" for name in names]
    for path in paths:
        path.write_text("1\n")
    headers = Headers.read(tmp_path, paths)
    assert headers.changed() == []
    _, written, replaced, removed, touched = paths
    written.write_text("2\n")
    os.utime(written, ns=(0, 0))
    (tmp_path / "new").write_text("1\n")
    (tmp_path / "new").rename(replaced)
    removed.unlink()
    touched.touch()  # nobody can tell it from one that was written and restored
    assert headers.changed() == [written, replaced, removed, touched]
    assert Headers.read(tmp_path, paths[:3]).hash != Headers.read(tmp_path, [paths[0]]).hash


# ---- what a kernel's text includes ----


def test_included_headers_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one.cuh").write_text('#pragma once\n#include "a/two.cuh"\n')
    (tmp_path / "a/two.cuh").write_text('  #  include "a/one.cuh"\nmbarrier\n')
    (tmp_path / "a/three.cuh").write_text("not included\n")
    text = '#include <cstdint>\n#include "a/one.cuh"\n#include "not/there.cuh"\n'
    headers = included(text, tmp_path)
    assert headers == {name: (tmp_path / name).read_text() for name in ("a/one.cuh", "a/two.cuh")}
    assert may_release([text, *headers.values()])
    assert not may_release([text, headers["a/one.cuh"]])
