"""The hash of all sources of the machine code of a family's kernels.

Measurements and soaks are valid for these sources only. The hash follows the headers that a
generated kernel includes, and leaves out text that does not change machine code: comments, spacing,
the emulator, the host side, the headers of other families.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

from flashsmith.configs import CONFIG_CLASSES, KernelConfig
from flashsmith.jit.headers import HeaderTree
from flashsmith.jit.kernel_compilers import NVCC_FLAGS
from flashsmith.jit.sources import PACKAGE_SOURCES

# Strings are kept: static_assert has some, and // in a string begins no comment.
_STRING_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)

_DIRECTIVE = re.compile(r"^(#.*)$", re.MULTILINE)
_SPACE_AT_BRACKET = re.compile(r" (?:(?=[(){}\[\],;])|(?<=[(){}\[\],;] ))")


def kernel_source_stamp(csrc: Path = PACKAGE_SOURCES.csrc) -> dict[str, str]:
    """Returns the name of each family's stamp field, with the hash of its kernels' sources."""
    return {stamp_field(kind): kernel_source_hash(kind, csrc) for kind in CONFIG_CLASSES}


def stamp_field(kind: type[KernelConfig]) -> str:
    """Returns the name of a family's hash in stamps of measurements: `kernels_sm90`, for its
    backward `kernels_sm90_backward`."""
    return f"kernels_{kind.qualified_family()}"


@functools.cache
def kernel_source_hash(kind: type[KernelConfig], csrc: Path = PACKAGE_SOURCES.csrc) -> str:
    """Returns 16 hexadecimal digits that change when nvcc's input for a family's kernels changes.

    The hash leaves out the compiler's version: tables measured with another version are used.
    """
    digest = hashlib.sha256("\0".join(NVCC_FLAGS).encode())
    kernel = {"kernel.cu": f'#include "flashsmith/{kind.family}/{kind.kernels_name()}_kernel.cuh"'}
    # The emulator's headers are in another folder, so they are not found here.
    for header in HeaderTree.present(csrc).included(kernel, [csrc / "include"]).found:
        name = header.name.removeprefix("include/")
        digest.update(f"\0{name}\0{_without_comments(header.text)}".encode())
    return digest.hexdigest()[:16]


def _without_comments(text: str) -> str:
    """Removes comments and spacing, so that code may be reformatted; directives keep their
    lines."""
    kept = _STRING_OR_COMMENT.sub(lambda match: match[1] or " ", text).replace("\\\n", " ")
    lines = "\n".join(" ".join(line.split()) for line in kept.splitlines())
    code_and_directives = _DIRECTIVE.split(lines)
    for i in range(0, len(code_and_directives), 2):
        code = " ".join(code_and_directives[i].split())
        code_and_directives[i] = _SPACE_AT_BRACKET.sub("", code)
    return "\n".join(code_and_directives)
