"""The sources of a library: the package's and the kernels' C++ files, and their headers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flashsmith import codegen
from flashsmith.configs import KernelId
from flashsmith.jit.headers import Headers, HeaderTree, hash_json
from flashsmith.jit.target import Target

REGISTRY_SOURCE = "registry.cpp"  # the one host file that reads the generated map

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
        """The hash of the compiled text and its headers, without the generated map, which lists the
        library's kernels."""
        return hash_json([self.files[self.source_file], self.headers.hash])


def read_sources(
    instances: Sequence[KernelId], generated: Mapping[str, str], target: Target, csrc: Path
) -> list[Source]:
    """Returns the files of the host (and the emulator), which all libraries share, then the
    kernels'."""
    tree = HeaderTree.present(csrc)
    found = []
    for path in _host_files(csrc, target):
        files = {path.name: tree.read(path).text}
        if path.name == REGISTRY_SOURCE:
            files[codegen.MAP_HEADER] = generated[codegen.MAP_HEADER]
        headers = tree.included(files, host_roots(csrc))
        label = path.relative_to(csrc)
        name = "-".join(label.with_suffix("").parts)
        found.append(Source(name, label.as_posix(), files, headers, None))
    for instance in instances:
        file_name = f"{instance.slug}.cu"
        files = {file_name: generated[file_name]}
        headers = tree.included(files, kernel_roots(csrc, target))
        found.append(Source(instance.slug, instance.name, files, headers, instance))
    return found


def host_hash(sources: Iterable[Source]) -> str:
    """Returns the hash of all sources but the kernels: every library of these sources shares it."""
    return hash_json({each.name: each.hash for each in sources if each.instance is None})


def host_roots(csrc: Path) -> tuple[Path, ...]:
    """Returns the include folders of the host, the emulator and emulated kernels."""
    return csrc / "include", csrc


def kernel_roots(csrc: Path, target: Target) -> tuple[Path, ...]:
    """Returns the include folders of kernels; nvcc finds no header of the emulator."""
    return (csrc / "include",) if target.kind == "cuda" else host_roots(csrc)


def source_hash(csrc: Path, target: Target) -> str:
    """Returns the hash of every C++ file of the package that may go into a library for
    ``target``."""
    digest = hashlib.sha256()
    for folder in ("include", "host", *_emulator_folder(target)):
        for path in sorted((csrc / folder).rglob("*")):
            if path.suffix in _SUFFIXES:
                content = path.read_bytes()
                digest.update(f"{path.relative_to(csrc).as_posix()}\0{len(content)}\0".encode())
                digest.update(content)
    return digest.hexdigest()


def _host_files(csrc: Path, target: Target) -> Iterator[Path]:
    for folder in ("host", *_emulator_folder(target)):
        yield from sorted((csrc / folder).rglob("*.cpp"))


def _emulator_folder(target: Target) -> tuple[str, ...]:
    return ("emulator",) if target.kind == "emulator" else ()
