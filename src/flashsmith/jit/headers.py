"""The headers that a compiler reads with a text: which, and whether one changed since."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_Stamp = tuple[int, int, int]
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^">\n]+)[">]', re.MULTILINE)


@dataclass(frozen=True)
class Header:
    """A file as it was when it was read.

    A compiler reads it later than the hash does. An object belongs under the hash only if the file
    was not written in between; one that was written and restored has a new time of change, which
    nobody can set back.
    """

    name: str  # below the folder csrc
    path: Path
    text: str
    hash: str
    stamp: _Stamp | None

    def changed(self) -> bool:
        """Whether the file was written, replaced or removed since."""
        return _stamp(self.path) != self.stamp


@dataclass(frozen=True)
class Headers:
    """All that a text includes, at any depth, ordered by name."""

    found: tuple[Header, ...]
    missing: tuple[str, ...]  # named in quotes, and in no folder that is searched

    @property
    def hash(self) -> str:
        """Of names and contents."""
        return hash_json([(header.name, header.hash) for header in self.found])

    def changed(self) -> list[Path]:
        """The files that were written, replaced or removed since."""
        return [header.path for header in self.found if header.changed()]


class HeaderTree:
    """The headers below a folder ``csrc``. Each is read once, however many texts include it."""

    def __init__(self, csrc: Path) -> None:
        self.csrc = csrc
        self._headers: dict[Path, Header] = {}

    def included(self, files: Mapping[str, str], roots: Sequence[Path]) -> Headers:
        """What ``files`` (name -> text) include beside each other, looked for in ``roots`` as a
        compiler does.

        Conditions are not evaluated: what is included under an #ifdef is included. A name in angle
        brackets that is in no root is another package's, whose version is part of the flags.
        """
        found: dict[Path, Header] = {}
        missing: set[str] = set()
        waiting: list[tuple[str, Path | None]] = [(text, None) for text in files.values()]
        while waiting:
            text, folder = waiting.pop()
            for opening, name in _INCLUDE.findall(text):
                # A name in quotes is looked for beside the file that has it first.
                beside = [folder] if folder and opening == '"' else []
                path = _find(name, [*beside, *roots])
                if path is None:
                    missing |= {name} if opening == '"' and name not in files else set()
                elif path not in found:
                    found[path] = self._read(path)
                    waiting.append((found[path].text, path.parent))
        ordered = sorted(found.values(), key=lambda header: header.name)
        return Headers(tuple(ordered), tuple(sorted(missing)))

    def _read(self, path: Path) -> Header:
        if path not in self._headers:
            stamp = _stamp(path)  # before it is read
            content = path.read_bytes()
            name = path.relative_to(self.csrc).as_posix()
            digest = hashlib.sha256(content).hexdigest()
            self._headers[path] = Header(name, path, content.decode(), digest, stamp)
        return self._headers[path]


def hash_json(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _find(name: str, folders: Iterable[Path]) -> Path | None:
    paths = (Path(os.path.normpath(folder / name)) for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def _stamp(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_ctime_ns
