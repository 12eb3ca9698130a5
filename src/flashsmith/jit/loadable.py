"""The base of modules and of the host library: files in a cache that are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flashsmith.jit.cache import KernelCache, Manifest

_refused: set[tuple[Path, float]] = set()


@dataclass(frozen=True)
class Loadable:
    """An entry of a cache, checked against its manifest, whose file is loaded."""

    directory: Path
    manifest: Manifest

    @property
    def path(self) -> Path:
        return self.directory / str(self.manifest["artifact"]["file"])

    @property
    def is_refused(self) -> bool:
        """Whether this process could not load the file."""
        return self._identity in _refused

    def refuse(self) -> None:
        """Makes look-ups skip the entry in this process, which could not load it.

        The entry remains in the cache: other machines that share the cache may load it.
        """
        _refused.add(self._identity)

    def set_aside(self) -> None:
        """Moves the entry to the failures, so that it is built anew."""
        KernelCache().set_aside(self.directory, self.manifest)

    @property
    def _identity(self) -> tuple[Path, float]:
        """The folder and time of creation; a rebuilt entry of the same name has another time."""
        return self.directory, self.manifest["created"]
