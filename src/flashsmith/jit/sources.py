"""The C++ files of the host library and of kernels, with the headers that they include."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flashsmith import codegen
from flashsmith.configs import KernelId
from flashsmith.jit.headers import Headers, HeaderTree, hash_json
from flashsmith.jit.target import Target

EMULATOR_FOLDER, NVRTC_FOLDER = "emulator", "nvrtc"
# The symbols that the host library, and an emulated kernel, export.
HOST_SCRIPT, KERNEL_SCRIPT = "host/exports.map", "emulator/kernels.map"

_SUFFIXES = {".h", ".hpp", ".cuh", ".inl", ".cpp"}


@dataclass(frozen=True)
class SourceTree:
    """The C++ sources (folders include, host, emulator) and the generator of the kernels' text."""

    csrc: Path
    generate: Callable[[Sequence[KernelId]], dict[str, str]]


PACKAGE_SOURCES = SourceTree(Path(__file__).parent.parent / "csrc", codegen.generate)


@dataclass(frozen=True)
class Source:
    """One file to compile, with all headers that it includes."""

    name: str  # the instance's slug, or the host file's folders and stem
    label: str  # for people
    files: dict[str, str]  # file name -> text; the first is compiled and includes the others
    headers: Headers
    instance: KernelId | None  # None for files of the host and the emulator

    @property
    def source_file(self) -> str:
        return next(iter(self.files))

    @property
    def texts(self) -> Iterator[str]:
        """The texts of the package and of generated files that the compiler reads."""
        yield from self.files.values()
        yield from (header.text for header in self.headers.found)

    @property
    def hash(self) -> str:
        """The hash of the compiled text and its headers."""
        return hash_json([self.files[self.source_file], self.headers.hash])


def host_sources(csrc: Path) -> tuple[Source, ...]:
    """Returns the files of the host library: those of the host, then those of the emulator."""
    return _host_sources(HeaderTree.present(csrc))


@functools.lru_cache(maxsize=1)  # a look-up asks for them several times
def _host_sources(tree: HeaderTree) -> tuple[Source, ...]:
    found = []
    for folder in ("host", EMULATOR_FOLDER):
        for path in tree.files(folder, ".cpp"):
            files = {path.name: tree.read(path).text}
            label = path.relative_to(tree.csrc)
            name = "-".join(label.with_suffix("").parts)
            headers = tree.included(files, host_roots(tree.csrc))
            found.append(Source(name, label.as_posix(), files, headers, None))
    return tuple(found)


def kernel_sources(
    instances: Sequence[KernelId], generated: Mapping[str, str], target: Target, csrc: Path
) -> list[Source]:
    """Returns the generated files of kernels, in the order of ``instances``.

    The linker script of an emulated kernel is treated as one of its headers, because the kernel has
    to be linked again when the script changes.
    """
    tree = HeaderTree.present(csrc)
    scripts = (tree.read(csrc / KERNEL_SCRIPT),) if target.kind == "emulator" else ()
    found = []
    for instance in instances:
        file_name = f"{instance.slug}.cu"
        files = {file_name: generated[file_name]}
        headers = tree.included(files, kernel_roots(csrc, target))
        headers = replace(headers, found=(*headers.found, *scripts))
        found.append(Source(instance.slug, instance.name, files, headers, instance))
    return found


def emulator_hash(csrc: Path) -> str:
    """Returns the hash of all sources of the emulator, whose functions emulated kernels call."""
    files = [each for each in host_sources(csrc) if each.label.startswith(EMULATOR_FOLDER)]
    return hash_json({each.name: each.hash for each in files})


def nvrtc_hash(csrc: Path) -> str:
    """Returns the hash of the standard headers that NVRTC reads."""
    tree = HeaderTree.present(csrc)
    return hash_json([tree.read(path).hash for path in sorted((csrc / NVRTC_FOLDER).iterdir())])


def host_roots(csrc: Path) -> tuple[Path, ...]:
    """Returns the include folders of the host, the emulator and emulated kernels."""
    return csrc / "include", csrc


def kernel_roots(csrc: Path, target: Target) -> tuple[Path, ...]:
    """Returns the include folders of kernels; nvcc finds no header of the emulator."""
    return (csrc / "include",) if target.kind == "cuda" else host_roots(csrc)


def source_hash(csrc: Path) -> str:
    """Returns the hash of every C++ file of the package."""
    digest = hashlib.sha256()
    for folder in ("include", "host", EMULATOR_FOLDER):
        for path in sorted((csrc / folder).rglob("*")):
            if path.suffix in _SUFFIXES:
                content = path.read_bytes()
                digest.update(f"{path.relative_to(csrc).as_posix()}\0{len(content)}\0".encode())
                digest.update(content)
    return digest.hexdigest()
