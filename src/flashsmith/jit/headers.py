"""The headers that a compiler reads with a text, and whether one has changed since."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

_Stamp = tuple[int, int, int]
_Includes = tuple[tuple[str, str], ...]  # the opening, < or ", and the name
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^">\n]+)[">]', re.MULTILINE)


@dataclass(frozen=True)
class Header:
    """The contents of a header file when it was read.

    A compiler reads the file after it was hashed. The object may be stored under the hash only if
    the file was not written in between; a file that was written and restored has a new ctime, which
    no program can set back.
    """

    name: str  # below the folder csrc
    path: Path
    text: str
    hash: str
    stamp: _Stamp | None

    @cached_property
    def named(self) -> _Includes:
        """The names that the text includes."""
        return tuple(_INCLUDE.findall(self.text))

    def changed(self) -> bool:
        """Returns whether the file was written, replaced or removed since."""
        return _stamp(self.path) != self.stamp


@dataclass(frozen=True)
class Headers:
    """All headers that a text includes, at any depth, ordered by name."""

    found: tuple[Header, ...]
    missing: tuple[str, ...]  # named in quotes, but in no searched folder

    @cached_property
    def hash(self) -> str:
        """The hash of names and contents."""
        return hash_json([(header.name, header.hash) for header in self.found])

    def changed(self) -> list[Path]:
        """Returns the files that were written, replaced or removed since."""
        return [header.path for header in self.found if header.changed()]


class _Question(NamedTuple):
    """The inputs that, beside the headers themselves, decide which headers are included."""

    named: _Includes
    files: frozenset[str]
    roots: tuple[Path, ...]


class HeaderTree:
    """The headers below a folder ``csrc``; each is read once, however many texts include it."""

    def __init__(self, csrc: Path) -> None:
        self.csrc = csrc
        self._headers: dict[Path, Header] = {}
        self._places: dict[tuple[str, tuple[Path, ...]], Path | None] = {}  # looked up
        self._included: dict[_Question, Headers] = {}
        self._stamps: dict[Path, _Stamp | None] = {}  # all files and folders that were looked at

    @classmethod
    def present(cls, csrc: Path) -> HeaderTree:
        """Returns the tree of ``csrc`` in this process, or a new one if a file or folder changed.

        Folders count too, because a new header may hide one of another folder.
        """
        tree = _trees.get(csrc)
        if tree is None or tree._has_changed():
            tree = _trees[csrc] = cls(csrc)
        return tree

    def included(self, files: Mapping[str, str], roots: Sequence[Path]) -> Headers:
        """Returns the headers that ``files`` (name -> text) include, without the files themselves,
        searched in ``roots`` as a compiler does.

        Conditions are not evaluated: a header under an #ifdef counts. A name in angle brackets that
        is in no root belongs to another package, whose version is part of the flags.
        """
        named = tuple(each for text in files.values() for each in _INCLUDE.findall(text))
        question = _Question(named, frozenset(files), tuple(roots))
        if question not in self._included:  # kernels of one family share the answer
            self._included[question] = self._follow(question)
        return self._included[question]

    def read(self, path: Path) -> Header:
        """Returns a file below ``csrc``, included or not."""
        if path not in self._headers:
            stamp = self._stamps[path] = _stamp(path)  # taken before the file is read
            content = path.read_bytes()
            name = path.relative_to(self.csrc).as_posix()
            digest = hashlib.sha256(content).hexdigest()
            self._headers[path] = Header(name, path, content.decode(), digest, stamp)
        return self._headers[path]

    def _follow(self, question: _Question) -> Headers:
        found: dict[Path, Header] = {}
        missing: set[str] = set()
        waiting: list[tuple[_Includes, Path | None]] = [(question.named, None)]
        while waiting:
            named, folder = waiting.pop()
            for opening, name in named:
                # A name in quotes is first looked for beside the file that includes it.
                beside = (folder,) if folder and opening == '"' else ()
                path = self._find(name, (*beside, *question.roots))
                if path is None:
                    missing |= {name} if opening == '"' and name not in question.files else set()
                elif path not in found:
                    found[path] = self.read(path)
                    waiting.append((found[path].named, path.parent))
        ordered = sorted(found.values(), key=lambda header: header.name)
        return Headers(tuple(ordered), tuple(sorted(missing)))

    def _find(self, name: str, folders: tuple[Path, ...]) -> Path | None:
        """Returns the first of ``folders`` / ``name`` that is a file."""
        asked = name, folders
        if asked not in self._places:
            paths = (Path(os.path.normpath(folder / name)) for folder in folders)
            self._places[asked] = next(filter(self._is_file, paths), None)
        return self._places[asked]

    def _is_file(self, path: Path) -> bool:
        if path.parent not in self._stamps:
            self._stamps[path.parent] = _stamp(path.parent)  # taken before the folder is searched
        return path.is_file()

    def _has_changed(self) -> bool:
        # The items are copied, because other threads may add some.
        return any(_stamp(path) != stamp for path, stamp in list(self._stamps.items()))


_trees: dict[Path, HeaderTree] = {}  # by csrc


def hash_json(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _stamp(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_ctime_ns
