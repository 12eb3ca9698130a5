"""Tells which shared libraries this machine's loader accepts: machines may share a cache."""

from __future__ import annotations

import functools
import os
import re
from contextlib import suppress
from pathlib import Path

# The first bytes of an ELF header (class and byte order follow the magic), and the machine field.
_MAGIC, _IDENTITY_BYTES, _MACHINE = b"\x7fELF", 6, slice(18, 20)
_SELF = Path("/proc/self/exe")
_NAMES = {"3e00": "x86_64", "b700": "aarch64"}  # by the machine field


def kind_of(path: Path) -> str:
    """Returns the class and machine of an ELF file, like ``ELF 0201 3e00``; empty for another
    file."""
    with suppress(OSError), path.open("rb") as file:
        head = file.read(_MACHINE.stop)
        if head.startswith(_MAGIC) and len(head) == _MACHINE.stop:
            return f"ELF {head[len(_MAGIC) : _IDENTITY_BYTES].hex()} {head[_MACHINE].hex()}"
    return ""


def machine_of(kind: str) -> str:
    """Returns the name of the machine of ``kind_of``; ``kind`` itself if it is not known."""
    return _NAMES.get(kind[-4:], kind)


def platform_of(kind: str, libc: str) -> str:
    """Returns where a library of this kind, linked against this C library, loads, in words."""
    return f"{machine_of(kind)} with {libc}"


def platform_here() -> str:
    """Returns ``platform_of`` for this machine."""
    return platform_of(_kind_here(), find_libc())


def find_libc() -> str:
    """Returns the C library that runs here, like ``glibc 2.36``."""
    with suppress(ValueError, OSError):
        if name := os.confstr("CS_GNU_LIBC_VERSION"):
            return name
    return "libc"  # the version is not known


def loads_here(kind: str, libc: str) -> bool:
    """Returns whether a library of this kind, linked against this C library, can be loaded here.

    A library that was linked against an older version of the same C library can be.
    """
    if kind != (_kind_here() or kind):
        return False
    (name, version), (name_here, version_here) = map(_split, (libc, find_libc()))
    return name == name_here and version <= version_here


@functools.cache
def _kind_here() -> str:
    return kind_of(_SELF)


def _split(libc: str) -> tuple[str, tuple[int, ...]]:
    name, _, version = libc.partition(" ")
    return name, tuple(map(int, re.findall(r"\d+", version)))
