"""Finds libraries that were built, without a compiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flashsmith.configs import KernelId, parse_kernel_name_into_instance, require_buildable
from flashsmith.jit.binary import loads_here
from flashsmith.jit.cache import KernelCache, Manifest, has_fields
from flashsmith.jit.sources import PACKAGE_SOURCES, SourceTree, host_hash, read_sources
from flashsmith.jit.target import Target
from flashsmith.jit.units import FORMAT

_refused: set[tuple[Path, float]] = set()


@dataclass(frozen=True)
class Library:
    """A shared library in the cache; it has been checked against its manifest."""

    directory: Path
    manifest: Manifest

    @property
    def is_for_here(self) -> bool:
        """Whether this machine's loader should accept the library, judged by its manifest."""
        could_be = loads_here(self.manifest["binary"], self.manifest["libc"])
        return could_be and self._identity not in _refused

    def refuse(self) -> None:
        """Makes ``find_library`` skip the library in this process, which could not load it.

        The library remains in the cache: other machines that share the cache may load it.
        """
        _refused.add(self._identity)

    @property
    def _identity(self) -> tuple[Path, float]:
        """The folder and time of creation; a rebuilt library of the same name has another time."""
        return self.directory, self.manifest["created"]

    @property
    def path(self) -> Path:
        return self.directory / str(self.manifest["artifact"]["file"])

    @property
    def target(self) -> Target:
        return Target(self.manifest["target"]["kind"], tuple(self.manifest["target"]["archs"]))

    @property
    def kernels(self) -> dict[str, Manifest]:
        """Instance slug -> name, dynamic shared memory in bytes, and ptxas figures by
        architecture."""
        return dict(self.manifest["kernels"])

    @property
    def not_linted(self) -> dict[str, int]:
        """Reason why machine code was not linted -> number of kernels."""
        return dict(
            Counter(why for kernel in self.kernels.values() for why in kernel["not_linted"])
        )


def find_library(
    instances: Iterable[KernelId],
    target: Target,
    *,
    sources: SourceTree = PACKAGE_SOURCES,
) -> Library | None:
    """Returns the newest sound library that has all ``instances`` for ``target``, and maybe more.

    A library counts if it was built from the present sources, by any compiler, and can be loaded
    here. The look-up needs no compiler.
    """
    wanted = sorted(set(instances))
    present = _PresentSources(wanted, target, sources)
    cache = KernelCache()
    for library in list_libraries():
        if present.are_of(library, wanted) and cache.read(library.directory):
            return library
    return None


def built_instances(target: Target, *, sources: SourceTree = PACKAGE_SOURCES) -> set[KernelId]:
    """Returns the kernels that ``find_library`` would find for ``target``, one at a time."""
    libraries = list_libraries()
    named = _buildable(
        kernel["name"] for library in libraries for kernel in library.kernels.values()
    )
    if not named:
        return set()
    present = _PresentSources(sorted(named), target, sources)
    return {each for each in named if any(present.are_of(library, [each]) for library in libraries)}


def list_libraries() -> list[Library]:
    """Returns the libraries in the cache with a readable manifest, newest first.

    The shared libraries themselves are not hashed, because tables and look-ups do not need it.
    """
    cache = KernelCache()
    cache.check()
    folders = cache.entries(cache.libraries)
    read = (read_library(cache, folder, check_hash=False) for folder in folders)
    found = [library for library in read if library is not None]
    return sorted(found, key=lambda library: float(library.manifest["created"]), reverse=True)


def read_library(
    cache: KernelCache, folder: Path, key: str | None = None, check_hash: bool = True
) -> Library | None:
    """Returns the library of a sound entry whose manifest has all properties; else None.

    key, check_hash: See ``KernelCache.read``.
    """
    manifest = cache.read(folder, key, check_hash)
    fields: dict[str, type] = {"binary": str, "libc": str, "host_hash": str}
    if not has_fields(manifest, target=dict, kernels=dict, **fields):
        return None
    assert manifest is not None
    library = Library(folder, manifest)
    try:
        is_whole = bool(library.target) and all(map(_is_kernel, library.kernels.values()))
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    return library if is_whole and manifest.get("format") == FORMAT else None


def _is_kernel(value: object) -> bool:
    """Returns whether a value is the description of a kernel in a library's manifest."""
    lists: dict[str, type] = {"resources": list, "not_linted": list}
    return has_fields(
        value, name=str, config=dict, source_hash=str, dynamic_shared_bytes=int, **lists
    )


def _buildable(names: Iterable[str]) -> set[KernelId]:
    """Returns the kernels of these names, without kernels that this version cannot build."""
    found = set()
    for name in names:
        with suppress(ValueError):
            instance = parse_kernel_name_into_instance(name)
            require_buildable(instance.config)
            found.add(instance)
    return found


class _PresentSources:
    """The hashes of the sources from which libraries for ``target`` would be built now."""

    def __init__(self, instances: Sequence[KernelId], target: Target, sources: SourceTree) -> None:
        found = read_sources(instances, sources.generate(instances), target, sources.csrc)
        self.target = target
        self.host = host_hash(found)
        self.kernels = {source.name: source.hash for source in found if source.instance}

    def are_of(self, library: Library, instances: Collection[KernelId]) -> bool:
        """Returns whether ``library`` was built from these sources and has all ``instances``."""
        built = library.kernels
        return (
            library.target.covers(self.target)
            and library.is_for_here
            and library.manifest["host_hash"] == self.host
            and all(
                built.get(each.slug, {}).get("source_hash") == self.kernels[each.slug]
                for each in instances
            )
        )
