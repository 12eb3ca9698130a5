"""Builds a library of kernels."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from flashsmith import codegen
from flashsmith.configs import KernelId
from flashsmith.errors import BuildError, ToolchainError
from flashsmith.jit.binary import kind_of
from flashsmith.jit.cache import Claims, KernelCache, Manifest, entry_name
from flashsmith.jit.compile import (
    BUILD_LOG,
    Progress,
    compile_units,
    default_jobs,
    full_disk_line,
    memory_hint,
    read_object,
)
from flashsmith.jit.disk import descriptor_errors
from flashsmith.jit.lookup import Library, find_library, read_library
from flashsmith.jit.ninja_files import response_file, run_ninja, shell_value
from flashsmith.jit.refusal import refuse_wrong_kernels
from flashsmith.jit.sources import PACKAGE_SOURCES, SourceTree, host_hash
from flashsmith.jit.target import Target
from flashsmith.jit.toolchain import INSTALL_CXX, require_cxx20
from flashsmith.jit.units import (
    FORMAT,
    Toolchain,
    TranslationUnit,
    find_toolchain,
    library_key,
    link_command,
    plan_units,
)

LIBRARY_FILE = "flash_kernels.so"

# ninja's own files must not be in the library's folder, so builddir is its parent.
_LINK_FILE = """\
builddir = ..
rule link
  command = $linker > ../link.log 2>&1
build {output}: link
  linker = {linker}
"""
_OBJECTS_FILE = "objects.txt"
_COMPILING = "compiling"
_WAITING = "waiting for another process that builds the same"


def build_library(
    instances: Iterable[KernelId],
    target: Target,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    force: bool = False,
    sources: SourceTree = PACKAGE_SOURCES,
) -> Library:
    """Returns the library of exactly these kernels for ``target``; builds it if the cache lacks it.

    jobs: The number of compilers at a time; default: FLASHSMITH_JOBS, else the processors, limited
        by memory.
    progress: A callback (objects done, objects in all, the object just finished), also called once
        before the first.
    force: Whether to compile everything again.

    Raises ToolchainError (a compiler is missing; not when the cache can serve), BuildError (a
    compiler failed, a kernel spills, or its machine code breaks a rule), CacheError (a directory of
    another user, a full disk), ValueError (no instances, or one that cannot be built).
    """
    wanted = sorted(set(instances))
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is {jobs}; it must be at least 1")
    cache = KernelCache()
    cache.check()
    with descriptor_errors():
        try:
            toolchain = find_toolchain(target)
        except ToolchainError:
            found = None if force else find_library(wanted, target, sources=sources)
            if found is None:
                raise
            return found
        build = _Build(wanted, target, toolchain, cache, sources)
        if not force and (library := build.cached()):
            return library
        return build.run(jobs or default_jobs(), progress or (lambda *_: None), force)


class _Build:
    """The build of one library, from plan to cache entry."""

    def __init__(
        self,
        instances: Sequence[KernelId],
        target: Target,
        toolchain: Toolchain,
        cache: KernelCache,
        sources: SourceTree,
    ) -> None:
        self.target, self.toolchain, self.cache = target, toolchain, cache
        generated = sources.generate(instances)
        self.map_header = generated[codegen.MAP_HEADER]
        self.units = plan_units(instances, generated, target, toolchain, sources.csrc)
        self.key = library_key(self.units, target, toolchain.tvm_ffi)
        self.entry = entry_name(f"{target.name}-{len(instances)}", self.key)
        self.directory = cache.libraries / self.entry

    def cached(self) -> Library | None:
        return read_library(self.cache, self.directory, self.key)

    def run(self, jobs: int, progress: Progress, force: bool) -> Library:
        require_cxx20(self.toolchain.cxx)
        self.cache.create()
        total = len(self.units)
        with self.cache.locked(self.entry, lambda: progress(0, total, _WAITING)):
            if not force and (library := self.cached()):
                return library
            self.cache.sweep(held=self.entry)
            with self.cache.staging(self.entry) as staging:
                objects = self._compile(staging, jobs, progress, force)
                refuse_wrong_kernels(self.units, objects)
                return self._link(staging, objects)

    def _compile(
        self, staging: Path, jobs: int, progress: Progress, force: bool
    ) -> dict[str, Manifest]:
        """Returns entry -> manifest of every object, once all are in the cache.

        Libraries may share objects, so each object's lock is held until the object is done. No
        process waits for a lock while it holds another, so this cannot deadlock.
        """
        objects = {} if force else self._read_objects(self.units)
        progress(len(objects), len(self.units), _COMPILING)
        while missing := [unit for unit in self.units if unit.entry not in objects]:
            with self.cache.claims([unit.entry for unit in missing]) as claimed:
                if not claimed:
                    progress(len(objects), len(self.units), _WAITING)
                    self.cache.wait_for(missing[0].entry)
                # Reads the objects that another process finished just before the claim, or while
                # this one waited.
                if not (force and claimed):
                    objects.update(self._read_objects(missing))

                def done(
                    unit: TranslationUnit, manifest: Manifest, claimed: Claims = claimed
                ) -> None:
                    objects[unit.entry] = manifest
                    claimed.pop(unit.entry).release()
                    progress(len(objects), len(self.units), unit.label)

                mine = [u for u in missing if u.entry in claimed and u.entry not in objects]
                compile_units(mine, self.cache, staging, jobs, done)
        return objects

    def _read_objects(self, units: Sequence[TranslationUnit]) -> dict[str, Manifest]:
        found = ((unit.entry, read_object(unit, self.cache)) for unit in units)
        return {entry: manifest for entry, manifest in found if manifest is not None}

    def _link(self, staging: Path, objects: dict[str, Manifest]) -> Library:
        paths = [
            self.cache.objects / entry / manifest["artifact"]["file"]
            for entry, manifest in sorted(objects.items())
        ]
        folder = staging / "library"
        with self.cache.disk_errors():
            folder.mkdir()
            (folder / codegen.MAP_HEADER).write_text(self.map_header)
            # A shell accepts 128 KiB in one argument; the paths of some hundred objects are longer.
            (staging / _OBJECTS_FILE).write_text(response_file(paths))
        command = link_command(self.toolchain, [f"@../{_OBJECTS_FILE}"], LIBRARY_FILE)
        log = self._run_linker(command, staging)
        whole = shlex.join(link_command(self.toolchain, paths, LIBRARY_FILE))
        with self.cache.disk_errors():
            (folder / BUILD_LOG).write_text(f"{whole}\n{log}")
        if not (binary := kind_of(folder / LIBRARY_FILE)):
            raise BuildError(
                f"linking {self.entry} wrote no shared library, though "
                f"{self.toolchain.cxx.path} says that it did; {INSTALL_CXX}\n"
                f"{shlex.join(command)}\n{log}"
            )
        manifest = self._manifest(objects, binary)
        manifest = self.cache.publish(folder, self.directory, self.key, LIBRARY_FILE, manifest)
        return Library(self.directory, manifest)

    def _run_linker(self, command: tuple[str, ...], staging: Path) -> str:
        """Runs the linker in the folder ``library`` and returns its output."""
        with self.cache.disk_errors():
            text = _LINK_FILE.format(linker=shell_value(command), output=LIBRARY_FILE)
            (staging / "link.ninja").write_text(text)
        output = run_ninja(staging / "library", jobs=1, file="../link.ninja")
        log_file = staging / "link.log"
        log = log_file.read_text(errors="replace") if log_file.exists() else ""
        if output is None:
            return log
        if line := full_disk_line(log):
            raise self.cache.full_error(line)
        why = log or "\n".join(output)  # ninja's message if the linker did not start
        hint = memory_hint("\n".join([log, *output]))
        raise BuildError(f"linking {self.entry} failed\n{hint}{shlex.join(command)}\n{why}")

    def _manifest(self, objects: dict[str, Manifest], binary: str) -> Manifest:
        kernels = {
            unit.name: {
                "name": unit.instance.name,
                "config": asdict(unit.instance.config),
                "variant": asdict(unit.instance.variant),
                "object": unit.entry,
                "source_hash": unit.hash,
                "dynamic_shared_bytes": unit.instance.config.shared_memory_bytes,
                "resources": objects[unit.entry]["kernels"],
                "not_linted": objects[unit.entry]["lint"]["not_linted"],
            }
            for unit in self.units
            if unit.instance is not None
        }
        return {
            "format": FORMAT,
            "target": asdict(self.target),
            "compiler": self.toolchain.identity.splitlines(),
            "binary": binary,
            "libc": self.toolchain.libc,
            "tvm_ffi": self.toolchain.tvm_ffi.version,
            "host_hash": host_hash(self.units),
            "kernels": kernels,
        }
