"""Builds units into the cache: each once, however many processes want it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from flashsmith.jit.cache import Claims, KernelCache
from flashsmith.jit.compile import Progress, compile_units
from flashsmith.jit.lint import Lint
from flashsmith.jit.units import TranslationUnit

Built = TypeVar("Built")
BuiltCo = TypeVar("BuiltCo", covariant=True)

_COMPILING = "compiling"
_WAITING = "waiting for another process that builds the same"


class Shelf(Protocol[BuiltCo]):
    """The place of compiled units of one kind in the cache."""

    def read(self, unit: TranslationUnit) -> BuiltCo | None:
        """Returns what was built from a unit; None if it is not there."""

    def publish(self, unit: TranslationUnit, staged: Path, lint: Lint) -> BuiltCo:
        """Puts a compiled unit into the cache."""


class UnitBuild(Generic[Built]):
    """The build of some units under one lock, so that two processes that want the same do not
    compile it twice."""

    def __init__(
        self, cache: KernelCache, name: str, units: Sequence[TranslationUnit], shelf: Shelf[Built]
    ) -> None:
        self.cache, self.name, self.units, self.shelf = cache, name, units, shelf

    def cached(self) -> dict[str, Built] | None:
        """Returns all that the units make, by their entries; None if a part is missing."""
        found = self._read(self.units)
        return found if len(found) == len(self.units) else None

    def run(
        self,
        jobs: int,
        progress: Progress,
        force: bool,
        then: Callable[[Path, dict[str, Built]], None] = lambda *_: None,
    ) -> dict[str, Built]:
        """Compiles what is missing, or everything with ``force``.

        then: A function that is called under the lock, with a private folder, once all is built.
        """
        total = len(self.units)
        self.cache.create()
        with self.cache.locked(self.name, lambda: progress(0, total, _WAITING)):
            self.cache.sweep(held=self.name)
            with self.cache.staging(self.name) as staging:
                built = self._compile(staging, jobs, progress, force)
                then(staging, built)
        return built

    def _compile(
        self, staging: Path, jobs: int, progress: Progress, force: bool
    ) -> dict[str, Built]:
        """Returns what each unit made, once all are in the cache.

        Builds may share units, so each unit's lock is held until it is done. No process waits for a
        lock while it holds another one of a unit, so this cannot deadlock.
        """
        built = {} if force else self._read(self.units)
        progress(len(built), len(self.units), _COMPILING)
        while missing := [unit for unit in self.units if unit.entry not in built]:
            with self.cache.claims([unit.entry for unit in missing]) as claimed:
                if not claimed:
                    progress(len(built), len(self.units), _WAITING)
                    self.cache.wait_for(missing[0].entry)
                # Reads what another process finished just before the claim, or while this one
                # waited.
                if not (force and claimed):
                    built.update(self._read(missing))

                def publish(
                    unit: TranslationUnit, staged: Path, lint: Lint, claimed: Claims = claimed
                ) -> None:
                    built[unit.entry] = self.shelf.publish(unit, staged, lint)
                    claimed.pop(unit.entry).release()
                    progress(len(built), len(self.units), unit.label)

                mine = [u for u in missing if u.entry in claimed and u.entry not in built]
                compile_units(mine, self.cache, staging, jobs, publish)
        return built

    def _read(self, units: Sequence[TranslationUnit]) -> dict[str, Built]:
        found = ((unit.entry, self.shelf.read(unit)) for unit in units)
        return {entry: built for entry, built in found if built is not None}
