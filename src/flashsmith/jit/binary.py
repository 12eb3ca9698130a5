"""Which shared libraries the loader of this machine takes: a cache may be of several machines."""

from __future__ import annotations

import functools
import os
import re
from contextlib import suppress
from pathlib import Path

# What a header begins with (class and byte order follow the magic), and where the machine stands.
_MAGIC, _IDENTITY_BYTES, _MACHINE = b"\x7fELF", 6, slice(18, 20)
_SELF = Path("/proc/self/exe")


def kind_of(path: Path) -> str:
    """Returns what an ELF file is made for, like ``ELF 0201 3e00``; empty: It is no such file."""
    with suppress(OSError), path.open("rb") as file:
        head = file.read(_MACHINE.stop)
        if head.startswith(_MAGIC) and len(head) == _MACHINE.stop:
            return f"ELF {head[len(_MAGIC) : _IDENTITY_BYTES].hex()} {head[_MACHINE].hex()}"
    return ""


def find_libc() -> str:
    """Returns the C library that runs here, like ``glibc 2.36``."""
    with suppress(ValueError, OSError):
        if name := os.confstr("CS_GNU_LIBC_VERSION"):
            return name
    return "libc"  # of no version that can be asked for


def loads_here(kind: str, libc: str) -> bool:
    """Returns whether a library of this kind, linked beside this C library, can be loaded here.

    One that was linked beside an older version of the same C library can.
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
