"""Kernels that were built: a module each, found without a compiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flashsmith.configs import KernelId, parse_kernel_name_into_instance, require_buildable
from flashsmith.importing import no_collections
from flashsmith.jit.binary import loads_here
from flashsmith.jit.cache import KernelCache, has_fields
from flashsmith.jit.caches import find_caches
from flashsmith.jit.kernel_compilers import archs_of
from flashsmith.jit.lint import Lint
from flashsmith.jit.loadable import Loadable
from flashsmith.jit.ptxas import KernelResources
from flashsmith.jit.sources import PACKAGE_SOURCES, SourceTree, emulator_hash, kernel_sources
from flashsmith.jit.target import Target
from flashsmith.jit.units import FORMAT


@dataclass(frozen=True)
class Module(Loadable):
    """A compiled kernel in the cache, checked against its manifest: a cubin for one architecture,
    or a shared object for the emulator."""

    @property
    def name(self) -> str:
        """The name of the kernel: its configuration and variant."""
        return str(self.manifest["name"])

    @property
    def target(self) -> Target:
        return Target(self.manifest["target"]["kind"], tuple(self.manifest["target"]["archs"]))

    @property
    def functions(self) -> dict[str, str]:
        """The kernel's functions: C++ name -> symbol."""
        return dict(self.manifest["functions"])

    @property
    def resources(self) -> list[KernelResources]:
        """The figures that ptxas reports of each function; empty for the emulator."""
        return [KernelResources(**figures) for figures in self.manifest["resources"]]

    @property
    def lint(self) -> Lint:
        return Lint.from_manifest(self.manifest["lint"])

    @property
    def is_for_here(self) -> bool:
        """Whether this process should load the module: its code is right, and this machine's loader
        should take it, judged by its manifest."""
        if self.lint.early_releases or self.is_refused:
            return False
        binary, libc = self.manifest["binary"], self.manifest["libc"]
        return self.target.kind == "cuda" or loads_here(binary, libc)


@no_collections()
def find_modules(
    instances: Iterable[KernelId],
    target: Target,
    *,
    sources: SourceTree = PACKAGE_SOURCES,
    caches: Sequence[KernelCache] | None = None,
) -> dict[KernelId, list[Module]]:
    """Returns the newest sound modules of each kernel that has one for all architectures of
    ``target`` that its family runs on.

    A module counts if it was built from the present sources, by any compiler, and can be loaded
    here. The look-up needs no compiler.

    caches: The caches that are searched; default: ``find_caches``.
    """
    asked = set(instances)
    if not asked:
        return {}
    caches = find_caches() if caches is None else caches
    folders = [(cache, cache.kernels_by_slug()) for cache in caches]
    # Hashing the sources of a kernel takes longer than seeing that it has no entry.
    wanted = sorted(each for each in asked if any(each.slug in of for _, of in folders))
    if not wanted:
        return {}
    present = _PresentSources(wanted, target, sources)
    found = {}
    for instance in wanted:
        entries = [
            module
            for cache, by_slug in folders
            for module in _read(cache, by_slug.get(instance.slug, []), check_hash=True)
        ]
        of_archs = [present.newest(instance, arch, entries) for arch in _archs(instance, target)]
        modules = [module for module in of_archs if module is not None]
        if modules and len(modules) == len(of_archs):
            found[instance] = modules
    return found


def find_module(
    instance: KernelId, target: Target, *, sources: SourceTree = PACKAGE_SOURCES
) -> Module | None:
    """Returns the first of ``find_modules`` for one kernel."""
    found = find_modules([instance], target, sources=sources).get(instance)
    return found[0] if found else None


def built_instances(
    target: Target,
    *,
    sources: SourceTree = PACKAGE_SOURCES,
    caches: Sequence[KernelCache] | None = None,
) -> set[KernelId]:
    """Returns the kernels that ``find_modules`` would find for ``target``, without reading the
    modules themselves."""
    by_name: dict[str, list[Module]] = {}
    for module in list_modules(caches):
        by_name.setdefault(module.name, []).append(module)
    named = {each for each in _buildable(by_name) if _archs(each, target)}
    if not named:
        return set()
    present = _PresentSources(sorted(named), target, sources)

    def is_built(instance: KernelId) -> bool:
        modules = by_name.get(instance.name, [])
        return all(present.newest(instance, arch, modules) for arch in _archs(instance, target))

    return set(filter(is_built, named))


def list_modules(caches: Sequence[KernelCache] | None = None) -> list[Module]:
    """Returns the modules with a readable manifest, newest first.

    The modules themselves are not hashed, because tables and look-ups do not need it.

    caches: The caches that are searched; default: ``find_caches``.
    """
    found = (
        module
        for cache in (find_caches() if caches is None else caches)
        for module in _read(cache, cache.entries(cache.kernels), check_hash=False)
    )
    return sorted(found, key=lambda module: float(module.manifest["created"]), reverse=True)


def why_not_linted(modules: Iterable[Module]) -> dict[str, int]:
    """Returns the reasons why machine code was not linted, with the number of kernels of each."""
    return dict(Counter(why for module in modules for why in module.lint.not_linted))


def read_module(
    cache: KernelCache, folder: Path, key: str | None = None, check_hash: bool = True
) -> Module | None:
    """Returns the module of a sound entry whose manifest has all properties; else None.

    key, check_hash: See ``KernelCache.read``.
    """
    manifest = cache.read(folder, key, check_hash)
    words: dict[str, type] = dict.fromkeys(
        ("name", "binary", "libc", "source_hash", "emulator"), str
    )
    parts: dict[str, type] = dict.fromkeys(("target", "config", "functions", "lint"), dict)
    lists: dict[str, type] = dict.fromkeys(("resources", "performance_warnings"), list)
    if not has_fields(manifest, dynamic_shared_bytes=int, **words, **parts, **lists):
        return None
    assert manifest is not None
    module = Module(folder, manifest)
    try:
        _ = module.target, module.lint  # raise if a part is missing
        numbers = [each.spilled for each in module.resources]
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    texts = [*manifest["performance_warnings"], *module.functions.values()]
    is_whole = (
        bool(module.functions)
        and all(isinstance(each, int) for each in numbers)
        and all(isinstance(text, str) for text in texts)
    )
    return module if is_whole and manifest.get("format") == FORMAT else None


def _read(cache: KernelCache, folders: Iterable[Path], *, check_hash: bool) -> Iterator[Module]:
    for folder in folders:
        module = read_module(cache, folder, check_hash=check_hash)
        if module is not None:
            yield module


def _archs(instance: KernelId, target: Target) -> tuple[str, ...]:
    """Returns ``archs_of``; none for a target that the kernel does not run on."""
    try:
        return archs_of(instance.config, target)
    except ValueError:
        return ()


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
    """The hashes of the sources from which kernels for ``target`` would be built now."""

    def __init__(
        self, instances: Collection[KernelId], target: Target, sources: SourceTree
    ) -> None:
        wanted = list(instances)
        found = kernel_sources(wanted, sources.generate(wanted), target, sources.csrc)
        self.target = target
        self.hashes = {source.instance: source.hash for source in found}
        is_emulated = target.kind == "emulator"
        self.emulator = emulator_hash(sources.csrc) if is_emulated else ""

    def newest(self, instance: KernelId, arch: str, modules: Iterable[Module]) -> Module | None:
        """Returns the newest of ``modules`` that was built from these sources for an architecture
        and can be loaded here."""
        wanted = Target(self.target.kind, (arch,) if arch else ())
        fitting = (
            module
            for module in modules
            if module.name == instance.name
            and module.target == wanted
            and module.manifest["source_hash"] == self.hashes[instance]
            and module.manifest["emulator"] == self.emulator
            and module.is_for_here
        )
        return max(fitting, key=lambda module: float(module.manifest["created"]), default=None)
