#!/usr/bin/env python3
"""Lists docstring heads and comments that are fragments instead of sentences.

    python tools/docs/sentences.py              # of all files
    python tools/docs/sentences.py src/flashsmith/ops tests/ops

A head is the first sentence of a docstring, or of a comment on separate lines. It must not begin
with a word that only continues something ("Of a call: ..."). A clause that begins with "If" or
"Where" needs a main clause after its comma. A function's docstring needs a verb, for what the
function does or returns; for a class, module or property a noun phrase is enough.

The exit status is 1 if there is a fragment.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CXX = (".cuh", ".cu", ".h", ".cpp")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A sentence does not begin with one of these words.
_FRAGMENTS = _words(
    """
    Also And But Else How Likewise Nor Of Or So Such That Those Up What Whatever Which Who Whose
    Why
    """
)
# A sentence may begin with one of these if a main clause follows after a comma.
_SUBORDINATE = _words(
    """
    After As At Because Before Behind Beside Between By For From If In Into Like On Once Over Under
    Unless Until When Where While With Without
    """
)
_VERBS = _words(
    """
    accepts adds agrees allocates allows answers appends applies are arrives asks asserts attends
    becomes begins belongs breaks brings builds calls can cannot carries changes checks chooses
    clears closes comes compares compiles computes contains converts copies counts covers cuts
    decodes defines depends describes differs divides do does draws drops ends enters exists expects
    explains fails fills finds finishes fits follows forbids forgets gathers generates gets gives
    goes grows guards had happens has have helps hides holds includes inherits installs is joins
    keeps knows lacks lays learns leaves lets lies looks loses makes matches may means measures
    meets mentions moves must needs notices opens overlaps pads passes picks prints puts raises
    reaches reads refuses relies remains remembers renames repeats replaces requires returns rises
    runs says sees selects serves should shows sits skips speaks spills splits stands starts stays
    stops survives takes tells touches tries turns uses visits waits wants warns was were will works
    would writes yields
    """
)
# These follow a plural noun. Verbs that are also nouns, such as "run" and "copy", are left out.
_PLURAL_VERBS = _words(
    """
    accept add agree allow append apply arrive assert attend become begin belong bring build choose
    come compare compute contain convert decode depend describe differ divide enter exist expect
    explain fail fill follow forbid forget gather generate get give go grow happen have hide include
    inherit join keep know learn lie lose make meet occur overlap raise read receive refuse rely
    remain remember replace require see serve share sit speak stay survive take tell wait write
    yield
    """
)
# A docstring may begin with one of these; elsewhere, most of them are nouns.
_FIRST_VERBS = _VERBS | _words(
    """
    asserts blanks blocks bounds branches captures casts collects combines completes connects
    creates decides delays deletes demangles deselects encodes enqueues exports fakes fetches
    flushes formats groups hands hashes imports initialises inserts launches lists loads locks logs
    maps marks names numbers orders packs parses patches plans plots profiles queues records reduces
    registers rejects releases removes reports reruns resolves restores rounds sends sets shortens
    sleeps soaks sorts starts stores sums swaps times tunes undoes updates walks warms wraps
    """
)
_RELATIVE = _words("that which who whose what where whom")
_DIRECTIVE = re.compile(r"noqa|type:|ruff:|mypy:|clang-format|NOLINT|!|pragma|SPDX|-\*-")


class Fragment(NamedTuple):
    """A head that is not a sentence, and its position."""

    path: Path
    line: int
    head: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}: {self.head[:90]}"


def fragments_of(path: Path, text: str) -> Iterator[Fragment]:
    """Yields the fragments of a Python or C++ file."""
    if path.suffix in CXX:
        heads = comment_heads(text, "//")
    else:
        yield from _docstring_fragments(path, text)
        heads = comment_heads(text, "#")
    for line, head in heads:
        if reason := _continues(head):
            yield Fragment(path, line, head, reason)


def comment_heads(text: str, mark: str) -> Iterator[tuple[int, str]]:
    """Yields the number of the first line and the head of each comment on separate lines."""
    numbered = enumerate(text.splitlines(), 1)
    for is_comment, lines in itertools.groupby(numbered, lambda each: _is_comment(each[1], mark)):
        if is_comment:
            block = list(lines)
            words = " ".join(line.strip().removeprefix(mark).strip() for _, line in block)
            yield block[0][0], head_of(words)


def head_of(text: str) -> str:
    """Returns the first sentence of a text on one line."""
    paragraph = text.strip().split("\n\n")[0]
    return re.split(r"(?<=[.:;?!])\s", " ".join(paragraph.split()))[0]


def _is_comment(line: str, mark: str) -> bool:
    line = line.strip()
    return line.startswith(mark) and not _DIRECTIVE.match(line.removeprefix(mark).strip())


def _docstring_fragments(path: Path, text: str) -> Iterator[Fragment]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            continue
        if not (docstring := ast.get_docstring(node)):
            continue
        head = head_of(docstring)
        reason = _continues(head)
        if not reason and isinstance(node, ast.FunctionDef) and not _is_property(node):
            reason = None if _has_verb(head) else "says neither what is done nor what is returned"
        if reason:
            yield Fragment(path, node.body[0].lineno, head, reason)


def _continues(head: str) -> str | None:
    """Returns the reason why a head's beginning is wrong; None if it is not."""
    first = _first_word(head)
    if first in _FRAGMENTS:
        return f'begins with "{first}"'
    if first in _SUBORDINATE and not _has_verb(head.partition(", ")[2]):
        return f'begins with "{first}" and has no main clause'
    return None


def _has_verb(clause: str) -> bool:
    words = re.findall(r"[\w'/-]+", clause)
    if not words:
        return False
    first = words[0].lower()
    if first in _FIRST_VERBS or f"{first}s" in _FIRST_VERBS or f"{first}es" in _FIRST_VERBS:
        return True
    return any(
        word in _VERBS | _PLURAL_VERBS and before not in _RELATIVE | {"to"}
        for before, word in itertools.pairwise(words)
    )


def _first_word(head: str) -> str:
    found = re.match(r"[A-Za-z]+", head)
    return found[0] if found else ""


def _is_property(node: ast.FunctionDef) -> bool:
    names = {getattr(each, "attr", getattr(each, "id", "")) for each in node.decorator_list}
    return bool(names & {"property", "cached_property", "fixture"})


def files_of(paths: Iterable[str]) -> list[Path]:
    """Returns the files below some paths that git tracks and the check covers."""
    patterns = ["*.py", *(f"*{suffix}" for suffix in CXX)]
    listed = subprocess.run(
        ["git", "ls-files", "--", *paths], cwd=ROOT, text=True, capture_output=True, check=True
    )
    names = (Path(name) for name in listed.stdout.splitlines())
    return [name for name in names if any(name.match(pattern) for pattern in patterns)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", help="files or folders; default: all")
    paths = parser.parse_args(arguments).paths
    found = [
        each for path in files_of(paths) for each in fragments_of(path, (ROOT / path).read_text())
    ]
    print("\n".join([*map(str, found), f"{len(found)} fragments"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
