"""Reads the functions of a kernel's module: a cubin, or a shared object on the emulator.

Both are ELF files with the same mangled names (Itanium C++ ABI). A module has each kernel function
once, so that its unqualified name is enough to find it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from flashsmith.errors import BuildError

_MAGIC = b"\x7fELF\x02"
_TABLE_AT, _COUNT_AT = 0x28, 0x3C  # of the section headers, in the file's header
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _DYNSYM = 2, 11  # types of sections
_FUNCTION, _GLOBAL, _WEAK = 2, 1, 2  # type and bindings of symbols
_KERNEL = "_kernel"  # the end of a kernel function's name
_DIGITS = re.compile(r"\d+")


def functions_in(module: bytes) -> dict[str, str]:
    """Returns the unqualified name of each kernel function, with its symbol.

    Raises:
        BuildError: The file is no 64-bit ELF file, or two functions have the same name.
    """
    found: dict[str, str] = {}
    for symbol in sorted(set(_symbols(module))):
        name = _unqualified(symbol)
        if not name.endswith(_KERNEL):
            continue
        if name in found:
            raise BuildError(
                f"a module has two functions {name}: {found[name]} and {symbol}; the host finds a "
                "kernel's functions by their names, so each needs its own"
            )
        found[name] = symbol
    return found


def _symbols(module: bytes) -> Iterator[str]:
    """Yields the global functions that an ELF file defines."""
    try:
        if not module.startswith(_MAGIC):
            raise BuildError("a module is no 64-bit ELF file: the compiler wrote something else")
        (table,) = struct.unpack_from("<Q", module, _TABLE_AT)
        (count,) = struct.unpack_from("<H", module, _COUNT_AT)
        headers = [_SECTION.unpack_from(module, table + _SECTION.size * i) for i in range(count)]
        for _, kind, _, _, start, size, link, *_ in headers:
            if kind not in (_SYMTAB, _DYNSYM):
                continue
            names = headers[link][4]
            for at in range(start, start + size, _SYMBOL.size):
                name, info, _, section, _, _ = _SYMBOL.unpack_from(module, at)
                if info & 0xF == _FUNCTION and info >> 4 in (_GLOBAL, _WEAK) and section:
                    end = module.index(b"\0", names + name)
                    yield module[names + name : end].decode()
    except (struct.error, ValueError, IndexError) as error:
        raise BuildError(f"a module's table of symbols cannot be read: {error}") from error


def _unqualified(symbol: str) -> str:
    """Returns the last name of a nested function template: ``forward_kernel`` for
    ``_ZN10flashsmith4sm9014forward_kernelI...``; empty for any other symbol."""
    if not symbol.startswith("_ZN"):
        return ""
    at, name = len("_ZN"), ""
    while length := _DIGITS.match(symbol, at):
        end = length.end() + int(length[0])
        name, at = symbol[length.end() : end], end
    return name if symbol[at : at + 1] == "I" else ""
