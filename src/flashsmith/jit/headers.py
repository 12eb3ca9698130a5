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
# The pattern leaves out the line's beginning: it is found several times as fast by its "#".
_INCLUDE = re.compile(r'#[ \t]*include[ \t]*([<"])([^">\n]+)[">]')


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
        return _included_names(self.text)

    def changed(self) -> bool:
        """Returns whether the file was written, replaced or removed since."""
        return _stamp(str(self.path)) != self.stamp


@dataclass(frozen=True)
class Headers:
    """All headers that a text includes, at any depth, ordered by name."""

    found: tuple[Header, ...]
    missing: tuple[str, ...]  # named in quotes, but in no searched folder
    foreign: frozenset[str]  # named in angle brackets, and in no searched folder

    @cached_property
    def hash(self) -> str:
        """The hash of names and contents."""
        return hash_json([(header.name, header.hash) for header in self.found])

    def changed(self) -> list[Path]:
        """Returns the files that were written, replaced or removed since."""
        return [header.path for header in self.found if header.changed()]


class _Direct(NamedTuple):
    """The headers that one text includes by itself, and the names that are in no folder."""

    found: tuple[Header, ...]
    missing: frozenset[str]
    foreign: frozenset[str]


class _Question(NamedTuple):
    """The inputs that, beside the headers themselves, decide which headers are included."""

    named: _Includes
    files: frozenset[str]
    roots: tuple[str, ...]


class HeaderTree:
    """The files below a folder ``csrc`` as they were when they were looked at: each is read, and
    followed, once, however many texts include it.

    Paths are strings inside, because thousands are compared, and a ``Path`` takes ten times as
    long.
    """

    def __init__(self, csrc: Path) -> None:
        self.csrc = csrc
        self._headers: dict[str, Header] = {}
        self._direct: dict[tuple[str, tuple[str, ...]], _Direct] = {}  # by name and roots
        self._included: dict[_Question, Headers] = {}
        self._folders: dict[str, frozenset[str]] = {}  # the files in folders
        self._stamps: dict[str, _Stamp | None] = {}  # all files and folders that were looked at

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
        named = tuple(each for text in files.values() for each in _included_names(text))
        question = _Question(named, frozenset(files), tuple(map(str, roots)))
        if question not in self._included:  # kernels of one family share the answer
            self._included[question] = self._follow(question)
        return self._included[question]

    def read(self, path: Path) -> Header:
        """Returns a file below ``csrc``, included or not."""
        return self._read(str(path))

    def files(self, folder: str, suffix: str) -> list[Path]:
        """Returns the files below a folder of ``csrc``, sorted; a new one is a change of the
        tree."""
        top = str(self.csrc / folder)
        self._look_at(top)
        found = []
        for parent, folders, names in os.walk(top):
            for each in folders:  # os.walk lists them afterwards
                self._look_at(os.path.join(parent, each))
            found += [Path(parent, name) for name in names if name.endswith(suffix)]
        return sorted(found)

    def _read(self, path: str) -> Header:
        if path not in self._headers:
            stamp = self._look_at(path)
            file = Path(path)
            content = file.read_bytes()
            name = file.relative_to(self.csrc).as_posix()
            digest = hashlib.sha256(content).hexdigest()
            self._headers[path] = Header(name, file, content.decode(), digest, stamp)
        return self._headers[path]

    def _follow(self, question: _Question) -> Headers:
        found: dict[str, Header] = {}
        missing: set[str] = set()
        foreign: set[str] = set()
        waiting = [self._look_up(question.named, question.roots, None)]
        while waiting:
            direct = waiting.pop()
            missing |= direct.missing
            foreign |= direct.foreign
            for header in direct.found:
                if header.name not in found:
                    found[header.name] = header
                    waiting.append(self._included_by(header, question.roots))
        ordered = tuple(found[name] for name in sorted(found))
        return Headers(ordered, tuple(sorted(missing - question.files)), frozenset(foreign))

    def _included_by(self, header: Header, roots: tuple[str, ...]) -> _Direct:
        asked = header.name, roots
        if asked not in self._direct:
            self._direct[asked] = self._look_up(header.named, roots, str(header.path.parent))
        return self._direct[asked]

    def _look_up(self, named: _Includes, roots: tuple[str, ...], beside: str | None) -> _Direct:
        """Finds names in ``roots``; those in quotes first ``beside`` the file that has them."""
        found: list[Header] = []
        missing: set[str] = set()
        foreign: set[str] = set()
        for opening, name in named:
            folders = (beside, *roots) if opening == '"' and beside else roots
            paths = (os.path.normpath(os.path.join(folder, name)) for folder in folders)
            if path := next(filter(self._is_file, paths), None):
                found.append(self._read(path))
            else:
                (missing if opening == '"' else foreign).add(name)
        return _Direct(tuple(found), frozenset(missing), frozenset(foreign))

    def _is_file(self, path: str) -> bool:
        folder, name = os.path.split(path)
        if folder not in self._folders:
            self._look_at(folder)
            self._folders[folder] = _files_in(folder)
        return name in self._folders[folder]

    def _look_at(self, path: str) -> _Stamp | None:
        """Notes the state of a file or folder, which is read afterwards: a change in between is one
        of the tree."""
        return self._stamps.setdefault(path, _stamp(path))

    def _has_changed(self) -> bool:
        # The items are copied, because other threads may add some.
        return any(_stamp(path) != stamp for path, stamp in list(self._stamps.items()))


_trees: dict[Path, HeaderTree] = {}  # by csrc


def hash_json(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _included_names(text: str) -> _Includes:
    matches = _INCLUDE.finditer(text)
    return tuple((m[1], m[2]) for m in matches if _begins_line(text, m.start()))


def _begins_line(text: str, place: int) -> bool:
    """Returns whether only blanks and tabs come before a place in its line."""
    return not text[text.rfind("\n", 0, place) + 1 : place].strip(" \t")


def _files_in(folder: str) -> frozenset[str]:
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if entry.is_file())
    except OSError:
        return frozenset()


def _stamp(path: str) -> _Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_ctime_ns
