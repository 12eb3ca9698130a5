"""What the machine code of a family's kernels is made of, as one hash.

Measurements and soaked kernels stand for these sources, and for no others. The hash follows the
headers that a generated kernel includes, and leaves out what makes no machine code: comments,
spacing, the emulator, the host side, the headers of other families.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

from flashsmith.configs import CONFIG_CLASSES, KernelConfig
from flashsmith.jit.headers import HeaderTree
from flashsmith.jit.sources import PACKAGE_SOURCES
from flashsmith.jit.units import NVCC_FLAGS

# A string is kept: static_assert has some, and a comment may not begin in one.
_STRING_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)

_DIRECTIVE = re.compile(r"^(#.*)$", re.MULTILINE)
_SPACE_AT_BRACKETS = re.compile(r" *([(){}\[\],;]) *")


def kernel_source_stamp(csrc: Path = PACKAGE_SOURCES.csrc) -> dict[str, str]:
    """For every family: the name of its stamp's field, and the hash of its kernels' sources."""
    return {stamp_field(kind): kernel_source_hash(kind, csrc) for kind in CONFIG_CLASSES}


def stamp_field(kind: type[KernelConfig]) -> str:
    """Returns what the hash of a family is called in stamps of measurements: `kernels_sm90`; of
    its backward `kernels_sm90_backward`."""
    return f"kernels_{kind.qualified_family()}"


@functools.cache
def kernel_source_hash(kind: type[KernelConfig], csrc: Path = PACKAGE_SOURCES.csrc) -> str:
    """16 hexadecimal digits that change when what nvcc makes of a family's kernels may change.

    The compiler's version is not in it: a table that was measured with another is used.
    """
    include = csrc / "include"
    digest = hashlib.sha256("\0".join(NVCC_FLAGS).encode())
    kernel = {"kernel.cu": f'#include "flashsmith/{kind.family}/{kind.kernels_name()}_kernel.cuh"'}
    # The emulator's headers are elsewhere, so they are not among these.
    for header in HeaderTree(include).included(kernel, [include]).found:
        digest.update(f"\0{header.name}\0{_without_comments(header.text)}".encode())
    return digest.hexdigest()[:16]


def _without_comments(text: str) -> str:
    """Nor spacing, so that code may be formatted anew; directives stay lines."""
    kept = _STRING_OR_COMMENT.sub(lambda match: match[1] or " ", text).replace("\\\n", " ")
    lines = "\n".join(" ".join(line.split()) for line in kept.splitlines())
    code_and_directives = _DIRECTIVE.split(lines)
    for i in range(0, len(code_and_directives), 2):
        code = " ".join(code_and_directives[i].split())
        code_and_directives[i] = _SPACE_AT_BRACKETS.sub(r"\1", code)
    return "\n".join(code_and_directives)
