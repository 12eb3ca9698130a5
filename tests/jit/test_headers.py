"""Headers that change during a build: no object is kept under the key of another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import support.tiny_build as tiny
from flashsmith.errors import BuildError
from flashsmith.jit import (
    KernelCache,
    Module,
    SourceTree,
    build_kernels,
    built_instances,
    find_module,
    headers,
)
from flashsmith.jit.headers import Headers, HeaderTree
from flashsmith.jit.lint import may_release
from flashsmith.jit.sources import emulator_hash, host_sources, kernel_sources
from flashsmith.jit.units import host_hash
from support.tiny_build import EMULATOR, INSTANCES

HEADER = "include/flashsmith/tiny.cuh"


def write_during_compile(kernels: str, commands: str) -> str:
    """Returns shell code for tiny.make_compiler that runs commands while some kernels are compiled,
    when the kernels before them are in the cache."""
    return f'case "$*" in *{kernels}*) sleep 2; {commands};; esac'


def build(csrc: Path) -> list[Module]:
    sources = SourceTree(csrc, tiny.generate)
    return build_kernels(INSTANCES[:1], EMULATOR, jobs=1, sources=sources)


def value(csrc: Path) -> int:
    """Returns what the kernel computes that a build makes now."""
    return tiny.sum_of_kernels(build(csrc), SourceTree(csrc, tiny.generate))


@pytest.fixture
def csrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return tiny.make_csrc(tmp_path / "csrc")


def use_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    compiler = tiny.make_compiler(tmp_path / "cxx", tmp_path / "log", before)
    monkeypatch.setenv("FLASHSMITH_CXX", str(compiler))


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_module_of_a_header_that_changed_is_not_kept(
    csrc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restored: bool
) -> None:
    """The compiler reads 8 and the key was made for 7, even if the header is restored."""
    header = csrc / HEADER
    restore = f'c++ "$@"; sed -i s/8/7/ {header}; exit 0' if is_restored else ":"
    writes = write_during_compile(INSTANCES[0].slug, f"sed -i s/7/8/ {header}; {restore}")
    use_compiler(tmp_path, monkeypatch, writes)
    with pytest.raises(BuildError) as caught:
        build(csrc)
    assert f"{header} changed while {INSTANCES[0].name} was compiled" in str(caught.value)
    assert "build again" in str(caught.value)
    cache = KernelCache()
    assert cache.entries(cache.kernels) == []

    use_compiler(tmp_path, monkeypatch, ":")
    assert value(csrc) == (7 if is_restored else 8)


def test_an_object_of_the_host_is_not_kept_either(
    csrc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = csrc / "host/tiny.h"
    header.write_text("// before\n")
    file = csrc / "host/tiny.cpp"
    file.write_text(f'#include "host/tiny.h"\n{file.read_text()}')
    use_compiler(tmp_path, monkeypatch, write_during_compile("/tiny.cpp", f"touch {header}"))
    with pytest.raises(BuildError, match=r"tiny\.h changed while host/tiny\.cpp was compiled"):
        build(csrc)
    cache = KernelCache()
    assert not [each for each in cache.entries(cache.objects) if "tiny" in each.name]
    assert cache.entries(cache.hosts) == []


def test_headers_that_a_file_does_not_include_may_change(csrc: Path) -> None:
    other = csrc / "include/flashsmith/other.cuh"
    other.write_text("// before\n")
    file = csrc / "host/tiny.cpp"
    file.write_text(f'#include "flashsmith/other.cuh"\n{file.read_text()}')
    generated = tiny.generate(INSTANCES[:1])
    kernels = kernel_sources(INSTANCES[:1], generated, EMULATOR, csrc)
    sources = [*host_sources(csrc), *kernels]
    other.write_text("// after\n")
    assert {source.name: source.headers.changed() for source in sources} == {
        "host-tiny": [other],
        "emulator-memory": [],
        INSTANCES[0].slug: [],
    }


def test_every_way_to_change_is_seen(tmp_path: Path) -> None:
    names = ("written", "replaced", "removed", "touched", "same")
    paths = [tmp_path / f"{name}.cuh" for name in names]
    for path in paths:
        path.write_text("1\n")
    headers = included("".join(f'#include "{path.name}"\n' for path in paths), tmp_path)
    assert headers.changed() == []
    written, replaced, removed, touched, _ = paths
    written.write_text("2\n")
    os.utime(written, ns=(0, 0))
    (tmp_path / "new").write_text("1\n")
    (tmp_path / "new").rename(replaced)
    removed.unlink()
    touched.touch()  # it looks like a header that was changed and restored
    assert headers.changed() == sorted([written, replaced, removed, touched])


# ---- read once in a process ----


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list of the names of files that are read from now on."""
    names: list[str] = []
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        names.append(path.name)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    return names


def present(text: str, *roots: Path) -> dict[str, str]:
    """Returns the name -> the text of each header that is included now."""
    found = HeaderTree.present(roots[0]).included({"text.cu": text}, roots).found
    return {header.name: header.text for header in found}


def test_a_header_is_read_once_in_a_process(tmp_path: Path, reads: list[str]) -> None:
    (tmp_path / "one.cuh").write_text('#include "two.cuh"\n')
    (tmp_path / "two.cuh").write_text("\n")
    for text in ('#include "one.cuh"\n', '#include "two.cuh"\n', '#include "one.cuh"\nint x;\n'):
        assert "two.cuh" in present(text, tmp_path)
    assert reads == ["one.cuh", "two.cuh"]


def test_a_look_up_of_a_module_reads_no_source_again(csrc: Path, reads: list[str]) -> None:
    sources = SourceTree(csrc, tiny.generate)
    build(csrc)
    reads.clear()
    assert find_module(INSTANCES[0], EMULATOR, sources=sources) is not None
    assert built_instances(EMULATOR, sources=sources) == set(INSTANCES[:1])
    assert reads == []


def test_a_header_that_changed_is_read_again(tmp_path: Path) -> None:
    header = tmp_path / "one.cuh"
    header.write_text("old\n")
    assert present('#include "one.cuh"', tmp_path) == {"one.cuh": "old\n"}
    header.write_text("longer\n")
    assert present('#include "one.cuh"', tmp_path) == {"one.cuh": "longer\n"}
    header.unlink()
    assert present('#include "one.cuh"', tmp_path) == {}
    header.write_text("again\n")
    assert present('#include "one.cuh"', tmp_path) == {"one.cuh": "again\n"}


@pytest.mark.parametrize("folder", ["", "a"])
def test_a_header_that_comes_before_another_is_seen(tmp_path: Path, folder: str) -> None:
    """A new header is noticed although no header that was read has changed."""
    first, last = tmp_path / "first" / folder, tmp_path / "first/last" / folder
    last.mkdir(parents=True)
    text = f'#include "{folder or "."}/one.cuh"'
    (last / "one.cuh").write_text("last\n")
    roots = tmp_path / "first", tmp_path / "first/last"
    assert list(present(text, *roots).values()) == ["last\n"]
    first.mkdir(exist_ok=True)
    (first / "one.cuh").write_text("first\n")
    assert list(present(text, *roots).values()) == ["first\n"]


def test_a_second_look_up_searches_no_text(csrc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = host_hash(csrc), emulator_hash(csrc)
    monkeypatch.setattr(headers, "_INCLUDE", None)
    assert (host_hash(csrc), emulator_hash(csrc)) == before


def test_a_header_of_many_texts_is_followed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.cuh").write_text('#include "two.cuh"\n')
    (tmp_path / "two.cuh").write_text("\n")
    tree, looked_up = HeaderTree(tmp_path), []
    honest = tree._look_up

    def counted(named: tuple[tuple[str, str], ...], *others: object) -> object:
        looked_up.append([name for _, name in named])
        return honest(named, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(tree, "_look_up", counted)
    texts = ['#include "one.cuh"\n', '#include "two.cuh"\n#include "one.cuh"\n']
    found = [tree.included({"text.cu": text}, [tmp_path]).found for text in texts]
    assert found[0] == found[1]
    assert looked_up == [["one.cuh"], ["two.cuh"], [], ["two.cuh", "one.cuh"]]


def test_files_of_the_host_that_change_are_seen(csrc: Path) -> None:
    def state() -> tuple[list[str], str, str]:
        return [each.label for each in host_sources(csrc)], host_hash(csrc), emulator_hash(csrc)

    file = csrc / "host/tiny.cpp"
    states = [state()]
    file.write_text(f"{file.read_text()}// changed\n")
    states.append(state())
    (csrc / "host/deep/deeper").mkdir(parents=True)
    assert state() == states[-1]
    (csrc / "host/deep/deeper/new.cpp").write_text('#include "host/deep/new.h"\n')
    states.append(state())
    assert "host/deep/deeper/new.cpp" in states[-1][0]
    (csrc / "host/deep/new.h").write_text("// at last\n")
    states.append(state())
    (csrc / "emulator/new.cpp").write_text('#include "host/deep/new.h"\n')
    states.append(state())
    (csrc / "host/deep/new.h").write_text("// changed\n")
    states.append(state())
    assert len({of_host for _, of_host, _ in states}) == len(states)
    assert [of for *_, of in states[:-2]] == [states[0][2]] * 4  # those are the host's alone
    assert len({of for *_, of in states[-3:]}) == 3
    (csrc / "emulator/new.cpp").unlink()
    (csrc / "host/deep/deeper/new.cpp").unlink()
    file.write_text(file.read_text().removesuffix("// changed\n"))
    assert state() == states[0]


# ---- what a text includes ----


def included(text: str, *roots: Path) -> Headers:
    return HeaderTree(roots[0]).included({"text.cu": text}, roots)


def test_included_headers_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one.cuh").write_text('#pragma once\n#include "a/two.cuh"\n')
    (tmp_path / "a/two.cuh").write_text("  #  include <a/one.cuh>\nmbarrier\n")
    (tmp_path / "a/three.cuh").write_text("not included\n")
    headers = included('#include <cstdint>\n#include "a/one.cuh"\n', tmp_path)
    assert [header.name for header in headers.found] == ["a/one.cuh", "a/two.cuh"]
    assert headers.missing == ()
    one, two = (header.text for header in headers.found)
    assert may_release(["", one, two])
    assert not may_release(["", one])


def test_a_header_in_quotes_is_looked_for_beside_the_one_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("near.cuh", "a/near.cuh", "far.cuh", "a/far.cuh"):
        (tmp_path / name).write_text("\n")
    (tmp_path / "a/one.cuh").write_text('#include "near.cuh"\n#include <far.cuh>\n')
    found = included('#include "a/../a/one.cuh"\n', tmp_path).found
    assert [header.name for header in found] == ["a/near.cuh", "a/one.cuh", "far.cuh"]


def test_the_first_folder_that_has_a_header_counts(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.cuh").write_text("\n")
    roots = [tmp_path / "first", tmp_path / "second"]
    (found,) = HeaderTree(tmp_path).included({"a.cu": '#include "same.cuh"'}, roots).found
    assert found.path == tmp_path / "first/same.cuh"


def test_what_is_named_in_quotes_and_nowhere_is_missing(tmp_path: Path) -> None:
    files = {
        "a.cu": '#include "not/there.cuh"\n#include <other/package.h>\n#include "b.h"',
        "b.h": "",
    }
    assert HeaderTree(tmp_path).included(files, [tmp_path]).missing == ("not/there.cuh",)


def test_names_in_angle_brackets_and_nowhere_are_foreign(tmp_path: Path) -> None:
    (tmp_path / "one.h").write_text("#include <other/package.h>\n#include <vector>\n")
    found = included('#include <one.h>\n#include <cstdint>\n#include "not/there.h"', tmp_path)
    assert found.foreign == {"other/package.h", "vector", "cstdint"}


def test_only_a_line_of_its_own_includes(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).write_text("")
    text = '#include "a"\n// #include "b"\n \t#\tinclude <c>  // why\nint x; #include "d"\n'
    assert [header.name for header in included(text, tmp_path).found] == ["a", "c"]
    assert not included("#include 'a'\n#include \"a\n#included <b>\n", tmp_path).found


def test_names_and_contents_count(tmp_path: Path) -> None:
    for name, text in (("a.h", "1"), ("b.h", "1"), ("c.h", "2")):
        (tmp_path / name).write_text(text)
    hashes = {included(f'#include "{name}.h"', tmp_path).hash for name in "abc"}
    assert len(hashes) == 3
    assert included('#include "a.h"', tmp_path).hash in hashes
