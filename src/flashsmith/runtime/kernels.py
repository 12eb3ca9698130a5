"""Finds the kernel of a configuration: one that is loaded, else in the cache, else built now."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

import tvm_ffi

from flashsmith import settings
from flashsmith.codegen import MAP_HEADER
from flashsmith.configs import (
    KernelConfig,
    KernelId,
    Variant,
    parse_kernel_name_into_instance,
)
from flashsmith.errors import CacheError, DeviceError, EmulatorFault, KernelNotFoundError
from flashsmith.jit import (
    KernelCache,
    Library,
    Progress,
    Target,
    build_library,
    built_instances,
    find_library,
)
from flashsmith.runtime.decoding import DecodeKernel
from flashsmith.runtime.launch_cache import launch_cache
from flashsmith.runtime.loaded import BackwardKernel, Kernel, LoadedKernel

logger = logging.getLogger("flashsmith")

# Errors that the libraries throw beside Python's own.
tvm_ffi.register_error("EmulatorFault", EmulatorFault)
tvm_ffi.register_error("DeviceError", DeviceError)

_KINDS: dict[str, type[LoadedKernel]] = {
    "forward": Kernel,
    "backward": BackwardKernel,
    "decode": DecodeKernel,
}  # by operation


@dataclass(frozen=True)
class _Loaded:
    """A library that this process has loaded."""

    library: Library
    module: Any  # its tvm_ffi module
    find_kernel: Callable[..., Mapping[Any, Callable[..., Any]] | None]  # csrc/host/exports.cpp

    @classmethod
    def load(cls, library: Library) -> _Loaded:
        """Raises CacheError: The loader refuses the library, or it is not one of flashsmith."""
        try:
            module = tvm_ffi.load_module(str(library.path))
            return cls(library, module, module.find_kernel)
        except Exception as error:  # the type depends on the loader
            raise _unloadable(library, str(error)) from error

    def find(self, instance: KernelId) -> LoadedKernel | None:
        """Returns the kernel under ``instance`` in the library's C++ maps, which compare all
        fields."""
        config, variant = instance.config, instance.variant
        kind = type(config).__name__  # the C++ struct has the same name
        found = self.find_kernel(instance.name, kind, _values(config), _values(variant))
        if found is None:
            return None
        operations = {str(name): found[name] for name in found}
        return _KINDS[config.operation](instance, self.module, operations)


def _values(given: KernelConfig | Variant) -> list[int]:
    """Returns the fields in their order, as C++ reads them: a bool is 0 or 1, a DType its
    number."""
    return [int(getattr(given, field.name)) for field in fields(given)]


def _unloadable(library: Library, why: str) -> CacheError:
    return CacheError(
        f"library {library.path} cannot be loaded here: {why}; `flashsmith build --force` makes it "
        "anew, FLASHSMITH_CXX names another compiler for that"
    )


_lock = threading.Lock()
_loaded: dict[Target, list[_Loaded]] = {}  # newest first
# The look-ups in the libraries of each target that were made already; None: no library has it.
_found: dict[Target, dict[KernelId, LoadedKernel | None]] = {}


def _free_in_child() -> None:
    """Replaces the lock in a child process: the parent's thread that may hold it is not there."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_free_in_child)


def load_library(library: Library, target: Target | None = None) -> None:
    """Loads a library, so that ``find_kernel`` finds its kernels for ``target``.

    target: A target that the library covers; default: the library's. Its kernels take precedence
        over those of libraries that were loaded before.

    Raises:
        CacheError: It cannot be loaded here.
    """
    target = target or library.target
    loaded = _Loaded.load(library)
    launch_cache.connect(loaded.module)
    with _lock:
        others = [each for each in _loaded.get(target, []) if each.library.path != library.path]
        # The look-ups are cleared first: a child forked before the next line must not remember that
        # a kernel is missing.
        _found[target] = {}
        _loaded[target] = [loaded, *others]


def loaded_instances(target: Target) -> set[KernelId]:
    """Returns the kernels that the manifests of libraries loaded for ``target`` list."""
    return {
        parse_kernel_name_into_instance(kernel["name"])
        for loaded in _loaded.get(target, [])
        for kernel in loaded.library.kernels.values()
    }


def existing_instances(target: Target) -> set[KernelId]:
    """Returns the kernels that ``find_kernel`` finds without building."""
    return loaded_instances(target) | built_instances(target)


def is_loaded(instance: KernelId, target: Target) -> bool:
    return _find_loaded(instance, target) is not None


def is_at_hand(instance: KernelId, target: Target) -> bool:
    """Returns whether ``find_kernel`` finds the kernel without building it."""
    return is_loaded(instance, target) or find_library([instance], target) is not None


def find_kernel(instance: KernelId, target: Target, progress: Progress | None = None) -> Kernel:
    """Returns the forward kernel of ``instance``: loaded, else from the cache, else built now.

    Raises:
        KernelNotFoundError: FLASHSMITH_BUILD forbids to build it and no library holds it; the
            message names the closest kernels that exist.
        ValueError: The configuration is illegal for the target.
        ToolchainError, BuildError, CacheError: Building failed.
    """
    return cast("Kernel", _find(instance, target, progress))


def find_backward(
    instance: KernelId, target: Target, progress: Progress | None = None
) -> BackwardKernel:
    """Returns the backward of ``instance``; see ``find_kernel``."""
    return cast("BackwardKernel", _find(instance, target, progress))


def find_decode(
    instance: KernelId, target: Target, progress: Progress | None = None
) -> DecodeKernel:
    """Returns the decode kernel of ``instance``; see ``find_kernel``."""
    return cast("DecodeKernel", _find(instance, target, progress))


def _find(instance: KernelId, target: Target, progress: Progress | None) -> LoadedKernel:
    kernel = _find_loaded(instance, target)
    if kernel is not None:
        return kernel
    library = load_kernels([instance], target, progress)
    if library is None:
        raise _not_found(instance, target)
    kernel = _look_up(instance, target)
    if kernel is None:
        raise _not_in_the_map(instance, library)
    return kernel


def load_kernels(
    instances: Collection[KernelId],
    target: Target,
    progress: Progress | None = None,
) -> Library | None:
    """Loads one library that has all kernels: from the cache, else built now.

    Returns:
        The library; None if none has all kernels and FLASHSMITH_BUILD forbids to build one.
        ``find_kernel`` then finds the kernels that other libraries hold.

    Raises:
        ValueError: A configuration is illegal for the target.
        CacheError: The library that exists, or was built, cannot be loaded here.
        ToolchainError, BuildError, CacheError: Building failed.
    """
    refused = None
    while library := find_library(instances, target):
        try:
            load_library(library, target)
            return library
        except CacheError as error:
            refused = error
            library.refuse()
            logger.warning("%s", error)
    if settings.BUILD.get() is not False:
        return _load_built(instances, target, progress)
    if refused is not None:
        raise refused
    return None


def _load_built(
    instances: Collection[KernelId], target: Target, progress: Progress | None
) -> Library:
    """Builds a library and loads it; if it cannot be loaded, sets it aside and builds once more."""
    library = build_library(instances, target, progress=progress)
    try:
        load_library(library, target)
    except CacheError as error:
        logger.warning("%s; it is built once more", error)
        KernelCache().set_aside(library.directory, library.manifest)
        library = build_library(instances, target, progress=progress)
        load_library(library, target)
    return library


def find_kernels(
    instances: Collection[KernelId], target: Target, progress: Progress | None = None
) -> list[Kernel]:
    """Returns the kernels, from one library if ``load_kernels`` finds or builds one. Raises as
    ``find_kernel`` does."""
    load_kernels(instances, target, progress)
    return [find_kernel(each, target) for each in instances]


def _find_loaded(instance: KernelId, target: Target) -> LoadedKernel | None:
    found = _found.get(target, {})
    return found[instance] if instance in found else _look_up(instance, target)


def _look_up(instance: KernelId, target: Target) -> LoadedKernel | None:
    """Asks the loaded libraries, newest first. The answer is kept until another library is loaded,
    because calls repeat the look-up while a kernel is being built."""
    with _lock:
        answers = (loaded.find(instance) for loaded in _loaded.get(target, []))
        kernel = next((answer for answer in answers if answer), None)
        return _found.setdefault(target, {}).setdefault(instance, kernel)


def _not_in_the_map(instance: KernelId, library: Library) -> KernelNotFoundError:
    """Returns the error for a library whose manifest lists a kernel that its map lacks."""
    return KernelNotFoundError(
        f"config {instance.name} is not in the map of {library.path}: {MAP_HEADER}, which "
        "flashsmith.codegen generates (tools/build/generate_kernel_instantiations.py prints and "
        "writes what), lacks its entry, though the library's manifest lists it; `flashsmith build "
        f"--force -k '{instance.config}'` generates and builds it anew"
    )


def _not_found(instance: KernelId, target: Target) -> KernelNotFoundError:
    alike = sorted(
        k
        for k in existing_instances(target)
        if k.variant == instance.variant and type(k.config) is type(instance.config)
    )
    closest = sorted(alike, key=lambda other: find_distance(other.config, instance.config))[:3]
    have = "; ".join(k.name for k in closest) or "none"
    return KernelNotFoundError(
        f"config {instance.name} is in no library for {target.name}, and FLASHSMITH_BUILD=0 "
        f"forbids to build it. Closest that exist: {have}. Run `flashsmith build -k` for it, or "
        "`flashsmith build --for-attention` for all that attention() takes, or use one of these."
    )


def find_distance(a: KernelConfig, b: KernelConfig) -> int:
    """Returns in how many fields two configurations differ; for two families it is more than the
    number of fields of either."""
    if type(a) is not type(b):
        return max(len(fields(a)), len(fields(b))) + 1
    return sum(getattr(a, field.name) != getattr(b, field.name) for field in fields(a))
