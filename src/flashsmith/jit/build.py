"""Builds kernels: a module of each in the cache."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from flashsmith.configs import KernelId, require_buildable
from flashsmith.errors import BuildError, ToolchainError
from flashsmith.jit.binary import kind_of
from flashsmith.jit.cache import KernelCache, Manifest, entry_name
from flashsmith.jit.caches import find_caches
from flashsmith.jit.compile import BUILD_LOG, Progress, default_jobs
from flashsmith.jit.disk import descriptor_errors
from flashsmith.jit.functions import functions_in
from flashsmith.jit.headers import hash_json
from flashsmith.jit.host import build_host
from flashsmith.jit.kernel_compilers import (
    HostToolchain,
    KernelCompiler,
    archs_of,
    find_kernel_compiler,
)
from flashsmith.jit.lint import Lint
from flashsmith.jit.module import Module, find_modules, read_module
from flashsmith.jit.ptxas import parse_performance_warnings, parse_resources
from flashsmith.jit.refusal import refuse_wrong_kernels
from flashsmith.jit.sources import PACKAGE_SOURCES, SourceTree
from flashsmith.jit.target import Target
from flashsmith.jit.unit_build import UnitBuild
from flashsmith.jit.units import FORMAT, TranslationUnit, plan_kernels


def build_kernels(
    instances: Iterable[KernelId],
    target: Target,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    force: bool = False,
    sources: SourceTree = PACKAGE_SOURCES,
    cache: KernelCache | None = None,
    toolchain: HostToolchain | None = None,
) -> list[Module]:
    """Returns the modules of these kernels for ``target``, sorted by kernel and architecture.
    Builds those that the cache lacks, and the host library if there is none.

    jobs: The number of compilers at a time; default: FLASHSMITH_JOBS, else the processors, limited
        by memory.
    progress: A callback (units done, units in all, the unit just finished), also called once
        before the first.
    force: Whether to compile the kernels again.
    cache: The cache that then has all kernels and the host library; default: the user's own, which
        does not get what a shared cache has.
    toolchain: What compiles emulated kernels and the host library, untried; default: this
        machine's compiler.

    Raises ToolchainError (a compiler is missing; not when the cache can serve), BuildError (a
    compiler failed, or machine code breaks a rule), CacheError (a directory of another user, a full
    disk), ValueError (no instances, or one that cannot be built).
    """
    wanted = sorted(set(instances))
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is {jobs}; it must be at least 1")
    for instance in wanted:
        require_buildable(instance.config)
    if not wanted:
        raise ValueError("instances: got an empty set; there is nothing to build")
    with descriptor_errors():
        shared = find_caches()[1:] if cache is None else []
        found = {} if force else find_modules(wanted, target, sources=sources, caches=shared)
        missing = [each for each in wanted if each not in found]
        own = cache or KernelCache()
        own.check()
        build = _Build(missing, target, sources, own, jobs or default_jobs(), force, toolchain)
        found |= build.run(progress or (lambda *_: None)) if missing else {}
        return [module for each in wanted for module in found[each]]


class _Build:
    """The build of kernels that no shared cache has."""

    def __init__(
        self,
        instances: Sequence[KernelId],
        target: Target,
        sources: SourceTree,
        cache: KernelCache,
        jobs: int,
        force: bool,
        toolchain: HostToolchain | None,
    ) -> None:
        self.instances, self.target, self.sources = instances, target, sources
        self.cache, self.jobs, self.force, self.toolchain = cache, jobs, force, toolchain

    def run(self, progress: Progress) -> dict[KernelId, list[Module]]:
        csrc = self.sources.csrc
        count = sum(len(archs_of(each.config, self.target)) for each in self.instances)
        host_files = 0  # that this build compiles

        def host_progress(done: int, total: int, what: str) -> None:
            nonlocal host_files
            host_files = total
            progress(done, total + count, what)

        def kernel_progress(done: int, total: int, what: str) -> None:
            progress(host_files + done, host_files + total, what)

        served = self._served_without_compiler()  # a missing one is said before the host is built
        host = build_host(
            jobs=self.jobs,
            progress=host_progress,
            sources=self.sources,
            cache=self.cache,
            toolchain=self.toolchain,
        )
        if served is not None:
            return served
        compiler = find_kernel_compiler(self.target, host.path, csrc, self.toolchain)
        generated = self.sources.generate(self.instances)
        units = plan_kernels(self.instances, generated, self.target, compiler, csrc)
        modules = self._modules(units, compiler, kernel_progress)
        refuse_wrong_kernels([modules[unit.entry] for unit in units])
        by_instance: dict[KernelId, list[Module]] = {}
        for unit in units:
            assert unit.instance is not None
            by_instance.setdefault(unit.instance, []).append(modules[unit.entry])
        return by_instance

    def _served_without_compiler(self) -> dict[KernelId, list[Module]] | None:
        """Returns the modules in the cache if no compiler makes them; None if one does.

        Raises ToolchainError: There is no compiler, or it lacks an architecture, and is needed.
        """
        try:
            compiler = find_kernel_compiler(self.target, Path(), self.sources.csrc, self.toolchain)
            for instance in self.instances:
                for arch in archs_of(instance.config, self.target):
                    compiler.require_arch(arch)
        except ToolchainError:
            found = find_modules(
                self.instances, self.target, sources=self.sources, caches=[self.cache]
            )
            if self.force or len(found) < len(self.instances):
                raise
            return found
        return None

    def _modules(
        self, units: Sequence[TranslationUnit], compiler: KernelCompiler, progress: Progress
    ) -> dict[str, Module]:
        """Returns the modules by the entries of their units."""
        key = hash_json(sorted(unit.key for unit in units))
        name = entry_name(f"{self.target.name}-{len(self.instances)}", key)
        build = UnitBuild(self.cache, name, units, _ModuleShelf(self.cache, compiler))
        cached = None if self.force else build.cached()
        if cached is not None:
            return cached
        if self.toolchain is None:
            compiler.require_cxx20()
        return build.run(self.jobs, progress, self.force)


class _ModuleShelf:
    """The modules in the cache."""

    def __init__(self, cache: KernelCache, compiler: KernelCompiler) -> None:
        self.cache, self.compiler = cache, compiler

    def read(self, unit: TranslationUnit) -> Module | None:
        return read_module(self.cache, self.cache.kernels / unit.entry, unit.key)

    def publish(self, unit: TranslationUnit, staged: Path, lint: Lint) -> Module:
        manifest = self._manifest(unit, staged, lint)
        shutil.rmtree(self.cache.failed / unit.entry, ignore_errors=True)
        entry = self.cache.kernels / unit.entry
        manifest = self.cache.publish(staged, entry, unit.key, unit.artifact, manifest)
        return Module(entry, manifest)

    def _manifest(self, unit: TranslationUnit, staged: Path, lint: Lint) -> Manifest:
        assert unit.instance is not None
        path = staged / unit.artifact
        log = (staged / BUILD_LOG).read_text(errors="replace")
        try:
            functions = functions_in(path.read_bytes())
        except BuildError as error:
            raise BuildError(f"compiling {unit.label}: {error}") from None
        if not functions:
            raise BuildError(
                f"compiling {unit.label} wrote {unit.artifact} without a kernel, though the "
                f"compiler says that it did not fail: {shlex.join(unit.command)}\n{log}"
            )
        return {
            "format": FORMAT,
            "name": unit.instance.name,
            "config": asdict(unit.instance.config),
            "variant": asdict(unit.instance.variant),
            "target": asdict(Target.cuda(unit.arch) if unit.arch else Target.emulator()),
            "source_hash": unit.hash,
            "emulator": self.compiler.emulator,
            "compiler": self.compiler.identity.splitlines(),
            "binary": kind_of(path),
            "libc": self.compiler.libc,
            "functions": functions,
            "dynamic_shared_bytes": unit.instance.config.shared_memory_bytes,
            "resources": [asdict(kernel) for kernel in parse_resources(log)],
            "performance_warnings": parse_performance_warnings(log),
            "lint": asdict(lint),
        }
