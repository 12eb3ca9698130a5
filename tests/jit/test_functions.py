"""The kernel functions of a module, read from its ELF file."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from flashsmith.errors import BuildError
from flashsmith.jit import find_cxx
from flashsmith.jit.functions import functions_in

# The kernels that count are templates in namespaces; the other names are near misses.
_SOURCE = """
namespace flashsmith {
namespace sm90 {
template <int n> struct Tile {};
template <class T> int forward_kernel() { return 1; }
template int forward_kernel<Tile<64>>();
template <int n> int helper() { return 2; }
template int helper<1>();
}
template <int n> int decode_kernel() { return 3; }
template int decode_kernel<-3>();
int plain_kernel() { return 4; }
}
template <int n> int global_kernel() { return 5; }
template int global_kernel<1>();
extern "C" int c_kernel() { return 6; }
namespace flashsmith { int value_kernel = 7; }
"""


def compile_elf(folder: Path, text: str, *flags: str) -> bytes:
    (folder / "source.cpp").write_text(text)
    command = [find_cxx().path, "-std=c++20", *flags, "source.cpp", "-o", "module"]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "module").read_bytes()


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compile_elf(tmp_path_factory.mktemp("elf"), _SOURCE, "-shared", "-fPIC")


FOUND = {
    "decode_kernel": "_ZN10flashsmith13decode_kernelILin3EEEiv",
    "forward_kernel": "_ZN10flashsmith4sm9014forward_kernelINS0_4TileILi64EEEEEiv",
}


def test_templates_in_namespaces_are_kernels(module: bytes) -> None:
    assert functions_in(module) == FOUND


def test_objects_have_symbols_too(tmp_path: Path) -> None:
    """A cubin has no dynamic symbols, and a stripped shared object has no others."""
    assert functions_in(compile_elf(tmp_path, _SOURCE, "-c")) == FOUND
    assert functions_in(compile_elf(tmp_path, _SOURCE, "-shared", "-fPIC", "-s")) == FOUND


def test_functions_of_other_files_and_local_ones_are_left_out(tmp_path: Path) -> None:
    other, using = tmp_path / "other", tmp_path / "using"
    other.mkdir(), using.mkdir()
    text = "namespace flashsmith { template <int n> int other_kernel() { return n; } "
    compile_elf(other, text + "template int other_kernel<1>(); }", "-shared", "-fPIC")
    text = """
    namespace flashsmith {
    template <int n> int other_kernel();
    namespace { template <int n> int local_kernel() { return n; } }
    int call() { return other_kernel<1>() + local_kernel<2>(); }
    }
    """
    flags = ("-shared", "-fPIC", "-O0", "-Wl,--no-as-needed", str(other / "module"))
    assert functions_in(compile_elf(using, text, *flags)) == {}


def test_a_module_without_a_kernel_has_no_functions(tmp_path: Path) -> None:
    assert functions_in(compile_elf(tmp_path, "int x() { return 1; }", "-c")) == {}


def test_two_functions_of_one_name_are_refused(tmp_path: Path) -> None:
    text = """
    namespace flashsmith {
    template <int n> int twin_kernel() { return n; }
    template int twin_kernel<1>();
    template int twin_kernel<2>();
    }
    """
    named = r"two functions twin_kernel: _ZN\w+ILi1EEEiv and _ZN\w+ILi2EEEiv; .* needs its own"
    with pytest.raises(BuildError, match=named):
        functions_in(compile_elf(tmp_path, text, "-c"))


@pytest.mark.parametrize(
    "content",
    [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(100)],
    ids=["empty", "magic alone", "script", "32 bits"],
)
def test_what_is_no_elf_file_is_refused(content: bytes) -> None:
    with pytest.raises(BuildError, match="no 64-bit ELF file"):
        functions_in(content)


def _at(module: bytes, offset: int, code: str, value: int) -> bytes:
    changed = bytearray(module)
    struct.pack_into(code, changed, offset, value)
    return bytes(changed)


def test_truncated_tables_are_refused(module: bytes) -> None:
    for size in (20, 63, len(module) // 2, len(module) - 1):
        with pytest.raises(BuildError, match="table of symbols cannot be read"):
            functions_in(module[:size])


@pytest.mark.parametrize("field", ["start", "size", "link", "name"])
def test_tables_that_point_nowhere_are_refused(module: bytes, field: str) -> None:
    (table,) = struct.unpack_from("<Q", module, 0x28)
    (count,) = struct.unpack_from("<H", module, 0x3C)
    headers = [table + 64 * i for i in range(count)]
    (symbols,) = [at for at in headers if struct.unpack_from("<I", module, at + 4) == (2,)]
    (start,) = struct.unpack_from("<Q", module, symbols + 24)
    (size,) = struct.unpack_from("<Q", module, symbols + 32)
    broken = {
        "start": _at(module, symbols + 24, "<Q", len(module)),
        "size": _at(module, symbols + 32, "<Q", len(module)),
        "link": _at(module, symbols + 40, "<I", count),
        "name": _break_names(module, start, size),
    }[field]
    with pytest.raises(BuildError, match="table of symbols cannot be read"):
        functions_in(broken)


def _break_names(module: bytes, start: int, size: int) -> bytes:
    """Returns the module with symbols whose names are behind its end."""
    for at in range(start, start + size, 24):
        module = _at(module, at, "<I", 0xFFFFFFF0)
    return module


def test_a_name_that_is_no_text_is_refused(module: bytes) -> None:
    broken = module.replace(b"decode_kernel", b"decode_kerne\xff")
    with pytest.raises(BuildError, match="table of symbols cannot be read"):
        functions_in(broken)
