"""The headers that a compiler may read: which, and whether they changed after they were hashed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_Stamp = tuple[int, int, int]
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Headers:
    """Files as they were when they were read.

    A compiler reads them later than the hash does. An object belongs under the hash only if no
    file was written in between; one that was written and restored has a new time of change, which
    nobody can set back.
    """

    hash: str  # of names and contents
    stamps: tuple[tuple[Path, _Stamp | None], ...]

    @classmethod
    def read(cls, root: Path, paths: Iterable[Path]) -> Headers:
        ordered = list(paths)
        stamps = tuple((path, _stamp(path)) for path in ordered)  # before they are read
        return cls(hash_files(root, ordered), stamps)

    def changed(self) -> list[Path]:
        """The files that were written, replaced or removed since."""
        return [path for path, stamp in self.stamps if _stamp(path) != stamp]


def included(text: str, include: Path) -> dict[str, str]:
    """The headers under ``include`` that ``text`` includes, at any depth: their names and texts."""
    found: dict[str, str] = {}
    waiting = [text]
    while waiting:
        for name in _INCLUDE.findall(waiting.pop()):
            path = include / name
            if name not in found and path.is_file():
                found[name] = path.read_text()
                waiting.append(found[name])
    return found


def hash_files(root: Path, paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _stamp(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_ctime_ns
