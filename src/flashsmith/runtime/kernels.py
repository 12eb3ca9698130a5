"""Finds the kernel of a configuration: one that is loaded, else in the cache, else built now."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterable
from dataclasses import fields
from typing import cast

from flashsmith import settings
from flashsmith.configs import KernelConfig, KernelId, Variant
from flashsmith.errors import CacheError, FlashsmithError, KernelNotFoundError
from flashsmith.gpus import get_gpu_architecture
from flashsmith.jit import (
    Module,
    Progress,
    Target,
    build_kernels,
    built_instances,
    find_module,
    find_modules,
)
from flashsmith.runtime.decoding import DecodeKernel
from flashsmith.runtime.host import load_host
from flashsmith.runtime.loaded import BackwardKernel, Kernel, LoadedKernel

logger = logging.getLogger("flashsmith")

_KINDS: dict[str, type[LoadedKernel]] = {
    "forward": Kernel,
    "backward": BackwardKernel,
    "decode": DecodeKernel,
}  # by operation

_lock = threading.Lock()
_loaded: dict[Target, dict[KernelId, LoadedKernel]] = {}


def _free_in_child() -> None:
    """Replaces the lock in a child process: the parent's thread that may hold it is not there."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_free_in_child)


def load_module(module: Module, instance: KernelId, target: Target) -> LoadedKernel:
    """Loads a kernel's module, so that ``find_kernel`` finds the kernel for ``target``.

    Raises:
        CacheError: It cannot be loaded here.
    """
    host = load_host()
    capability = get_gpu_architecture(instance.config.minimum_gpu).compute_capability
    try:
        operations = host.load_kernel(
            "emulator" if module.target.kind == "emulator" else "gpu",
            instance.name,
            type(instance.config).__name__,  # the C++ struct has the same name
            instance.config.family,
            [*capability, int(instance.config.exact_arch)],
            _values(instance.config),
            _values(instance.variant),
            str(module.path),
            module.functions,
        )
    except FlashsmithError:  # of the device, not of the file
        raise
    except RuntimeError as error:
        raise CacheError(
            f"kernel {module.path} cannot be loaded here: {error}; `flashsmith build --force -k "
            f"'{instance.config}'` makes it anew"
        ) from error
    kind = _KINDS[instance.config.operation]
    kernel = kind(instance, host, {str(name): operations[name] for name in operations})
    with _lock:
        return _loaded.setdefault(target, {}).setdefault(instance, kernel)


def _values(given: KernelConfig | Variant) -> list[int]:
    """Returns the fields in their order, as C++ reads them: a bool is 0 or 1, a DType its
    number."""
    return [int(getattr(given, field.name)) for field in fields(given)]


def loaded_instances(target: Target) -> set[KernelId]:
    """Returns the kernels that are loaded for ``target``."""
    return set(_loaded.get(target, {}))


def existing_instances(target: Target) -> set[KernelId]:
    """Returns the kernels that ``find_kernel`` finds without building."""
    return loaded_instances(target) | built_instances(target)


def instances_at_hand(instances: Iterable[KernelId], target: Target) -> set[KernelId]:
    """Returns those of ``instances`` that ``find_kernel`` finds without building."""
    asked = set(instances)
    loaded = asked & loaded_instances(target)
    return loaded | find_modules(asked - loaded, target).keys()


def is_loaded(instance: KernelId, target: Target) -> bool:
    return instance in _loaded.get(target, {})


def is_at_hand(instance: KernelId, target: Target) -> bool:
    """Returns whether ``find_kernel`` finds the kernel without building it."""
    return is_loaded(instance, target) or find_module(instance, target) is not None


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


def find_kernels(
    instances: Collection[KernelId], target: Target, progress: Progress | None = None
) -> list[Kernel]:
    """Returns the kernels in the order of ``instances``; those that are missing are built together.
    Raises as ``find_kernel`` does."""
    load_kernels(instances, target, progress)
    return [find_kernel(each, target) for each in instances]


def load_kernels(
    instances: Collection[KernelId], target: Target, progress: Progress | None = None
) -> None:
    """Loads all of these kernels: from the cache, and those that it lacks are built together.

    Raises:
        KernelNotFoundError: FLASHSMITH_BUILD forbids to build one that the cache lacks.
        ValueError: A configuration is illegal for the target.
        CacheError: A module that exists, or was built, cannot be loaded here.
        ToolchainError, BuildError, CacheError: Building failed.
    """
    wanted = [each for each in dict.fromkeys(instances) if not is_loaded(each, target)]
    if not wanted:
        return
    load_host(progress)
    refused: dict[KernelId, CacheError] = {}
    missing = wanted
    while found := find_modules(missing, target):
        for instance, modules in found.items():
            try:
                load_module(modules[0], instance, target)
            except CacheError as error:
                refused[instance] = error
                modules[0].refuse()
                logger.warning("%s", error)
        missing = [each for each in missing if not is_loaded(each, target)]
        if not missing:
            return
    if settings.BUILD.get() is not False:
        _build_and_load(missing, target, progress)
        return
    for instance in missing:
        raise refused.get(instance) or _not_found(instance, target)


def _find(instance: KernelId, target: Target, progress: Progress | None) -> LoadedKernel:
    kernel = _loaded.get(target, {}).get(instance)
    if kernel is None:
        load_kernels([instance], target, progress)
        kernel = _loaded[target][instance]
    return kernel


def _build_and_load(
    instances: Collection[KernelId], target: Target, progress: Progress | None
) -> None:
    """Builds kernels and loads them; one that cannot be loaded is set aside and built once more."""
    built = build_kernels(instances, target, progress=progress)
    by_name = {module.name: module for module in built}
    for instance in instances:
        module = by_name[instance.name]
        try:
            load_module(module, instance, target)
        except CacheError as error:
            logger.warning("%s; it is built once more", error)
            module.set_aside()
            load_module(build_kernels([instance], target)[0], instance, target)


def _not_found(instance: KernelId, target: Target) -> KernelNotFoundError:
    alike = sorted(
        k
        for k in existing_instances(target)
        if k.variant == instance.variant and type(k.config) is type(instance.config)
    )
    closest = sorted(alike, key=lambda other: find_distance(other.config, instance.config))[:3]
    have = "; ".join(k.name for k in closest) or "none"
    return KernelNotFoundError(
        f"config {instance.name} is not built for {target.name}, and FLASHSMITH_BUILD=0 "
        f"forbids to build it. Closest that exist: {have}. Run `flashsmith build -k` for it, or "
        "`flashsmith build --for-attention` for all that attention() takes, or use one of these."
    )


def find_distance(a: KernelConfig, b: KernelConfig) -> int:
    """Returns in how many fields two configurations differ; for two families it is more than the
    number of fields of either."""
    if type(a) is not type(b):
        return max(len(fields(a)), len(fields(b))) + 1
    return sum(getattr(a, field.name) != getattr(b, field.name) for field in fields(a))
