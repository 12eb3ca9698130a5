"""The host library: checks, plans, launches and the emulator, built once for a platform."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flashsmith.errors import BuildError, ToolchainError
from flashsmith.importing import no_collections
from flashsmith.jit.binary import kind_of, loads_here, platform_here, platform_of
from flashsmith.jit.cache import KernelCache, entry_name, has_fields
from flashsmith.jit.caches import find_caches
from flashsmith.jit.compile import (
    BUILD_LOG,
    Progress,
    default_jobs,
    full_disk_line,
    memory_hint,
)
from flashsmith.jit.kernel_compilers import HostToolchain
from flashsmith.jit.lint import Lint
from flashsmith.jit.loadable import Loadable
from flashsmith.jit.ninja_files import FailedJob, response_file, run_ninja, shell_value
from flashsmith.jit.sources import PACKAGE_SOURCES, SourceTree
from flashsmith.jit.toolchain import INSTALL_CXX, require_cxx20, tvm_ffi_version
from flashsmith.jit.unit_build import UnitBuild
from flashsmith.jit.units import (
    FORMAT,
    TranslationUnit,
    host_hash,
    host_key,
    link_command,
    plan_host,
)

HOST_FILE = "libflashsmith.so"

# ninja's own files must not be in the library's folder, so builddir is its parent. A log that
# cannot be written, on a full disk, fails the job.
_LINK_FILE = r"""
builddir = ..
rule link
  command = log=$$($linker 2>&1) && printf '%s\n' "$$log" > ../link.log || $
    {{ code=$$?; printf '%s\n' "$$log"; exit $$code; }}
build {output}: link
  linker = {linker}
"""
_OBJECTS_FILE = "objects.txt"


@dataclass(frozen=True)
class HostLibrary(Loadable):
    """A host library in the cache, checked against its manifest."""

    @property
    def is_for_here(self) -> bool:
        """Whether this process should load the library, judged by its manifest."""
        return not self.why_not_here and not self.is_refused

    @property
    def why_not_here(self) -> str:
        """Says why it does not work on this machine, and what to do; "" if it should."""
        binary, libc, tvm_ffi = (str(self.manifest[key]) for key in ("binary", "libc", "tvm_ffi"))
        if not loads_here(binary, libc):
            return (
                f"is for {platform_of(binary, libc)}, and this machine is {platform_here()}; "
                "install flashsmith's wheel for this machine "
                "(`pip install --force-reinstall --no-deps flashsmith`)"
            )
        if not _serves(tvm_ffi_version(), tvm_ffi):
            return (
                f"was compiled with tvm-ffi {tvm_ffi}, and {tvm_ffi_version()} is installed; "
                f"`pip install 'apache-tvm-ffi~={tvm_ffi}'`"
            )
        return ""


@no_collections()
def find_host(
    *, sources: SourceTree = PACKAGE_SOURCES, caches: Sequence[KernelCache] | None = None
) -> HostLibrary | None:
    """Returns the newest sound host library of the present sources that can be loaded here, built
    by any compiler. The look-up needs no compiler.

    caches: The caches that are searched in turn; default: ``find_caches``.
    """
    present = host_hash(sources.csrc)
    for cache in find_caches() if caches is None else caches:
        found = [
            library
            for library in _read_all(cache)
            if library.manifest["source_hash"] == present and library.is_for_here
        ]
        found.sort(key=lambda library: float(library.manifest["created"]), reverse=True)
        if sound := next((each for each in found if cache.read(each.directory)), None):
            return sound
    return None


def build_host(
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    sources: SourceTree = PACKAGE_SOURCES,
    cache: KernelCache | None = None,
    toolchain: HostToolchain | None = None,
) -> HostLibrary:
    """Returns ``find_host``, or builds the library if there is none.

    jobs, progress, cache: See ``build_kernels``.
    toolchain: The only compiler whose library is returned; default: any that loads here, built by
        this machine's if there is none.

    Raises ToolchainError (no C++20 compiler), BuildError (it failed), CacheError (a directory of
    another user, a full disk).
    """
    own = cache or KernelCache()
    is_own = own.root == KernelCache().root
    if toolchain is None:
        found = find_host(sources=sources, caches=None if is_own else [own])
        if found is not None:
            return found
        try:
            toolchain = HostToolchain.find()
        except ToolchainError as error:
            if why := why_no_host(sources):
                raise ToolchainError(f"{why}, or {INSTALL_CXX}") from error
            raise
        require_cxx20(toolchain.cxx)
    units = plan_host(toolchain, sources.csrc)
    build = _HostBuild(own, toolchain, sources, units)
    return build.run(jobs or default_jobs(), progress or (lambda *_: None))


def why_no_host(sources: SourceTree = PACKAGE_SOURCES) -> str | None:
    """Returns why the host library that came with the package, or is shared, does not serve here,
    and what to do about it; None if there is none of the present sources."""
    present = host_hash(sources.csrc)
    for library in (each for cache in find_caches()[1:] for each in _read_all(cache)):
        if library.manifest["source_hash"] == present and library.why_not_here:
            return f"the host library {library.path} {library.why_not_here}"
    return None


def _serves(installed: str, needed: str) -> bool:
    """Returns whether a library that was compiled with one version of tvm-ffi works with another.

    The library calls C functions of tvm-ffi alone, which every later version has; wheels are
    compiled with the oldest one. Where that changes, tvm-ffi counts a minor version.
    """
    here, there = (list(map(int, re.findall(r"\d+", version))) for version in (installed, needed))
    return not here or (here[:2] == there[:2] and here >= there)


def _read_all(cache: KernelCache) -> Iterator[HostLibrary]:
    for folder in cache.entries(cache.hosts):
        if library := _read(cache, folder):
            yield library


def _read(cache: KernelCache, folder: Path, key: str | None = None) -> HostLibrary | None:
    manifest = cache.read(folder, key, check_hash=key is not None)
    if not has_fields(manifest, binary=str, libc=str, source_hash=str, tvm_ffi=str):
        return None
    assert manifest is not None
    return HostLibrary(folder, manifest) if manifest.get("format") == FORMAT else None


class _ObjectShelf:
    """The compiled files of the host library in the cache."""

    def __init__(self, cache: KernelCache) -> None:
        self.cache = cache

    def read(self, unit: TranslationUnit) -> Path | None:
        entry = self.cache.objects / unit.entry
        manifest = self.cache.read(entry, unit.key)
        return entry / unit.artifact if has_fields(manifest, command=str) else None

    def publish(self, unit: TranslationUnit, staged: Path, lint: Lint) -> Path:
        del lint  # of machine code, which the host has none of
        shutil.rmtree(self.cache.failed / unit.entry, ignore_errors=True)
        manifest = {"format": FORMAT, "name": unit.name, "command": shlex.join(unit.command)}
        entry = self.cache.objects / unit.entry
        self.cache.publish(staged, entry, unit.key, unit.artifact, manifest)
        return entry / unit.artifact


class _HostBuild:
    """The build of the host library, from plan to cache entry."""

    def __init__(
        self,
        cache: KernelCache,
        toolchain: HostToolchain,
        sources: SourceTree,
        units: list[TranslationUnit],
    ) -> None:
        self.cache, self.toolchain, self.sources = cache, toolchain, sources
        self.source_hash = host_hash(sources.csrc, units)
        self.key = host_key(units, toolchain, sources.csrc)
        self.entry = entry_name("host", self.key)
        self.directory = cache.hosts / self.entry
        self.units = UnitBuild(cache, self.entry, units, _ObjectShelf(cache))

    def run(self, jobs: int, progress: Progress) -> HostLibrary:
        def link(staging: Path, objects: Mapping[str, Path]) -> None:
            # Another process may have linked it while this one waited for the lock.
            if _read(self.cache, self.directory, self.key) is None:
                self._link(staging, objects)

        self.units.run(jobs, progress, force=False, then=link)
        library = _read(self.cache, self.directory, self.key)
        if library is None:
            raise BuildError(
                f"the host library {self.directory} was removed as soon as it was built"
            )
        return library

    def _link(self, staging: Path, objects: Mapping[str, Path]) -> None:
        paths = [path for _, path in sorted(objects.items())]
        folder = staging / "library"
        with self.cache.disk_errors():
            folder.mkdir()
            # A shell accepts 128 KiB in one argument; the paths of some hundred objects are longer.
            (staging / _OBJECTS_FILE).write_text(response_file(paths))
        command = link_command(
            self.toolchain, self.sources.csrc, [f"@../{_OBJECTS_FILE}"], HOST_FILE
        )
        log = self._run_linker(command, staging)
        whole = shlex.join(link_command(self.toolchain, self.sources.csrc, paths, HOST_FILE))
        with self.cache.disk_errors():
            (folder / BUILD_LOG).write_text(f"{whole}\n{log}")
        if not (binary := kind_of(folder / HOST_FILE)):
            raise BuildError(
                f"linking {self.entry} wrote no shared library, though "
                f"{self.toolchain.cxx.path} says that it did; {INSTALL_CXX}\n"
                f"{shlex.join(command)}\n{log}"
            )
        if host_hash(self.sources.csrc) != self.source_hash:
            raise BuildError(
                f"sources of the host library in {self.sources.csrc} changed while it was built, "
                "so the result was thrown away: build again"
            )
        manifest = {
            "format": FORMAT,
            "compiler": self.toolchain.identity.splitlines(),
            "binary": binary,
            "libc": self.toolchain.libc,
            "tvm_ffi": self.toolchain.tvm_ffi.version,
            "source_hash": self.source_hash,
        }
        self.cache.publish(folder, self.directory, self.key, HOST_FILE, manifest)

    def _run_linker(self, command: tuple[str, ...], staging: Path) -> str:
        """Runs the linker in the folder ``library`` and returns its output."""
        with self.cache.disk_errors():
            text = _LINK_FILE.format(linker=shell_value(command), output=HOST_FILE)
            (staging / "link.ninja").write_text(text)
        output = run_ninja(staging / "library", jobs=1, file="../link.ninja")
        if output is None:
            return (staging / "link.log").read_text(errors="replace")
        text = "\n".join(output)
        if line := full_disk_line(text):
            raise self.cache.full_error(line)
        failed = FailedJob.first(output)
        raise BuildError(
            f"linking {self.entry} failed\n{memory_hint(text)}{shlex.join(command)}\n"
            f"{failed.log if failed else text}"
        )
