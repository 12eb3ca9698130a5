"""The kernel cache: machines that share it, and compilers that return 0 without writing a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import support.tiny_build as tiny
from flashsmith.errors import BuildError
from flashsmith.jit import SourceTree, binary, built_instances, list_libraries, units
from support.tiny_build import EMULATOR
from support.workshop import KERNEL_FILES, Workshop, edit_manifest

HERE = binary.find_libc()

# ---- other machines ----


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("binary", "ELF 0201 b700"),  # aarch64
        ("binary", ""),
        ("libc", "glibc 999.1"),
        ("libc", "musl 1.2"),
    ],
)
def test_a_library_for_another_machine_is_left_to_it(
    workshop: Workshop, field: str, value: str
) -> None:
    """A second library is built beside it, and each machine then finds its own."""
    library = workshop.build()
    edit_manifest(library.directory, lambda manifest: manifest.update({field: value}))
    assert workshop.find() is None
    assert built_instances(EMULATOR, sources=SourceTree(workshop.csrc, tiny.generate)) == set()
    assert [each.path for each in list_libraries()] == [library.path]


@pytest.mark.parametrize(
    ("there", "loads"),
    [("glibc 2.4", True), ("glibc 2.36", True), ("glibc 2.37", False), ("glibc 3.0", False)],
)
def test_a_library_needs_no_older_c_library_than_its_own(
    monkeypatch: pytest.MonkeyPatch, there: str, loads: bool
) -> None:
    monkeypatch.setattr(binary, "find_libc", lambda: "glibc 2.36")
    assert binary.loads_here(binary.kind_of(Path(sys.executable)), there) == loads


def test_a_newer_c_library_is_another_key(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's version may be the same in two containers with different C libraries."""
    for libc in ("glibc 2.1", "glibc 999.1"):
        monkeypatch.setattr(units, "find_libc", lambda libc=libc: libc)
        assert KERNEL_FILES[0] in workshop.new_compilations()
    assert len(list_libraries()) == 2
    found = workshop.find()
    assert found is not None and found.manifest["libc"] == "glibc 2.1"


def test_what_is_known_of_this_machine() -> None:
    assert HERE.startswith("glibc 2.")
    assert binary.kind_of(Path(sys.executable)).startswith("ELF 0")
    assert binary.loads_here(binary.kind_of(Path(sys.executable)), HERE)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"!<arch>\n" * 9])
def test_what_is_no_elf_file_has_no_kind(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    assert binary.kind_of(path) == ""
    path.write_bytes(content)
    assert binary.kind_of(path) == ""


# ---- compilers that lie ----

# This shell code runs in place of the compiler, and returns 0.
_LINKS = 'case " $* " in *" -shared "*) {}; exit 0;; esac'
_COMPILES = 'case " $* " in *" -c "*) {}; exit 0;; esac'
_OUTPUT = 'for last; do :; done; : > "$last"'  # the output is the last word


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (_LINKS.format(_OUTPUT), "wrote no shared library"),
        (_LINKS.format(":"), "wrote no shared library"),
        (_COMPILES.format(_OUTPUT), "wrote an empty object"),
        (_COMPILES.format(":"), "compiling .* failed"),
    ],
    ids=["links nothing", "writes no library", "compiles nothing", "writes no object"],
)
def test_what_was_not_written_is_not_kept(workshop: Workshop, lie: str, words: str) -> None:
    honest = workshop.compiler.read_text()
    workshop.compiler.write_text(honest.replace("exec ", f"{lie}\nexec "))
    with pytest.raises(BuildError, match=words):
        workshop.build()
    assert list_libraries() == []
    workshop.compiler.write_text(honest)
    assert "link" in workshop.new_compilations()


def test_a_manifest_says_where_its_library_loads(workshop: Workshop) -> None:
    manifest: dict[str, Any] = workshop.build().manifest
    assert manifest["binary"] == binary.kind_of(Path("/proc/self/exe"))
    assert manifest["libc"] == HERE
    assert manifest["compiler"][-1] == HERE
