"""The kernel cache: machines that share it, and compilers that return 0 without writing a file."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import support.tiny_build as tiny
from flashsmith.errors import BuildError
from flashsmith.jit import binary, built_instances, kernel_compilers, list_modules
from support.tiny_build import EMULATOR, INSTANCES
from support.workshop import HOST, KERNEL_FILES, Workshop, edit_manifest

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
def test_what_was_built_for_another_machine_is_left_to_it(
    workshop: Workshop, field: str, value: str
) -> None:
    """Another is built beside it, and each machine then finds its own."""
    (module,), library = workshop.build(), workshop.host
    for entry in (module.directory, library.directory):
        edit_manifest(entry, lambda manifest: manifest.update({field: value}))
    assert workshop.find() == [] and workshop.find_host() is None
    assert built_instances(EMULATOR, sources=workshop.sources) == set()
    assert [each.path for each in list_modules()] == [module.path]
    assert library.path.exists()


@pytest.mark.parametrize(
    ("there", "loads"),
    [("glibc 2.4", True), ("glibc 2.36", True), ("glibc 2.37", False), ("glibc 3.0", False)],
)
def test_a_file_needs_no_older_c_library_than_its_own(
    monkeypatch: pytest.MonkeyPatch, there: str, loads: bool
) -> None:
    monkeypatch.setattr(binary, "find_libc", lambda: "glibc 2.36")
    assert binary.loads_here(binary.kind_of(Path(sys.executable)), there) == loads


def test_a_newer_c_library_is_another_key(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's version may be the same in two containers with different C libraries."""
    for libc in ("glibc 2.1", "glibc 999.1"):
        monkeypatch.setattr(kernel_compilers, "find_libc", lambda libc=libc: libc)
        workshop.build()
        if libc == "glibc 2.1":
            aside = shutil.move(workshop.host.directory, workshop.root)
    shutil.move(aside, workshop.cache / "hosts")
    assert tiny.compiled(workshop.log) == sorted([*HOST, KERNEL_FILES[0]] * 2)
    assert [each.manifest["libc"] for each in list_modules()] == ["glibc 999.1", "glibc 2.1"]
    # This machine has a C library between these two.
    (found,) = workshop.find()
    assert found.manifest["libc"] == workshop.host.manifest["libc"] == "glibc 2.1"


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
_LINKS = 'case " $* " in *" @"*) {}; exit 0;; esac'
_COMPILES = 'case " $* " in *"tiny.cpp "*) {}; exit 0;; esac'
_BUILDS_KERNEL = 'case " $* " in *".cu "*) {}; exit 0;; esac'
_OUTPUT = 'for last; do :; done; : > "$last"'  # the output is the last word
_NAME = re.escape(INSTANCES[0].name)


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (_LINKS.format(_OUTPUT), "wrote no shared library"),
        (_LINKS.format(":"), "wrote no shared library"),
        (_COMPILES.format(_OUTPUT), "compiling host/tiny.cpp wrote an empty file"),
        (_COMPILES.format(":"), "compiling host/tiny.cpp wrote no file"),
        (_BUILDS_KERNEL.format(_OUTPUT), f"compiling {_NAME} wrote an empty file"),
        (_BUILDS_KERNEL.format(":"), f"compiling {_NAME} wrote no file"),
        (
            _BUILDS_KERNEL.format(f"{_OUTPUT}; echo text > $last"),
            f"compiling {_NAME}: .* no 64-bit ELF",
        ),
    ],
    ids=[
        "links nothing",
        "writes no library",
        "compiles nothing",
        "writes no object",
        "compiles no kernel",
        "writes no module",
        "writes no ELF file",
    ],
)
def test_what_was_not_written_is_not_kept(workshop: Workshop, lie: str, words: str) -> None:
    honest = shutil.copy2(workshop.compiler, workshop.root / "honest")
    workshop.compiler.write_text(honest.read_text().replace("exec ", f"{lie}\nexec "))
    with pytest.raises(BuildError, match=words):
        workshop.build()
    assert list_modules() == []
    assert (workshop.find_host() is None) == (".cu" not in lie)
    honest.replace(workshop.compiler)  # a compiler that the error ended may still be running
    assert KERNEL_FILES[0] in workshop.new_compilations()


def test_a_manifest_says_where_its_file_loads(workshop: Workshop) -> None:
    (module,) = workshop.build()
    manifest: dict[str, Any]
    for manifest in (module.manifest, workshop.host.manifest):
        assert manifest["binary"] == binary.kind_of(Path("/proc/self/exe"))
        assert manifest["libc"] == HERE
        assert HERE in manifest["compiler"]
