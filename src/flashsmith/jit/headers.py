"""The headers that a compiler reads with a text: which, and whether one changed since."""

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

    @cached_property
    def named(self) -> _Includes:
        """What the text includes."""
        return tuple(_INCLUDE.findall(self.text))

    def changed(self) -> bool:
        """Returns whether the file was written, replaced or removed since."""
        return _stamp(self.path) != self.stamp


@dataclass(frozen=True)
class Headers:
    """All that a text includes, at any depth, ordered by name."""

    found: tuple[Header, ...]
    missing: tuple[str, ...]  # named in quotes, and in no folder that is searched

    @cached_property
    def hash(self) -> str:
        """Of names and contents."""
        return hash_json([(header.name, header.hash) for header in self.found])

    def changed(self) -> list[Path]:
        """Returns the files that were written, replaced or removed since."""
        return [header.path for header in self.found if header.changed()]


class _Question(NamedTuple):
    """All that the headers which some files include depend on, beside the headers themselves."""

    named: _Includes
    files: frozenset[str]
    roots: tuple[Path, ...]


class HeaderTree:
    """The headers below a folder ``csrc``, each read once, however many texts include it."""

    def __init__(self, csrc: Path) -> None:
        self.csrc = csrc
        self._headers: dict[Path, Header] = {}
        self._places: dict[tuple[str, tuple[Path, ...]], Path | None] = {}  # of names in folders
        self._included: dict[_Question, Headers] = {}
        self._stamps: dict[Path, _Stamp | None] = {}  # of all files and folders looked at

    @classmethod
    def present(cls, csrc: Path) -> HeaderTree:
        """Returns the one tree of ``csrc`` in this process, or a new one if a file or folder
        changed.

        A folder counts because a header that is added to it may come before one of another folder.
        """
        tree = _trees.get(csrc)
        if tree is None or tree._has_changed():
            tree = _trees[csrc] = cls(csrc)
        return tree

    def included(self, files: Mapping[str, str], roots: Sequence[Path]) -> Headers:
        """Returns what ``files`` (name -> text) include beside each other, looked for in ``roots``
        as a compiler does.

        Conditions are not evaluated: what is included under an #ifdef is included. A name in angle
        brackets that is in no root is another package's, whose version is part of the flags.
        """
        named = tuple(each for text in files.values() for each in _INCLUDE.findall(text))
        question = _Question(named, frozenset(files), tuple(roots))
        if question not in self._included:  # else a kernel's, whose family's others ask the same
            self._included[question] = self._follow(question)
        return self._included[question]

    def read(self, path: Path) -> Header:
        """Returns a file below ``csrc``, included or not."""
        if path not in self._headers:
            stamp = self._stamps[path] = _stamp(path)  # before it is read
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
                # A name in quotes is looked for beside the file that has it first.
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
            self._stamps[path.parent] = _stamp(path.parent)  # before it is looked into
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
