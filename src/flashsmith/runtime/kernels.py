"""From a configuration to a kernel that can be called: loaded, found in the cache, or built."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

import tvm_ffi

from flashsmith import settings
from flashsmith.configs import (
    ForwardKernelConfig,
    KernelId,
    parse_kernel_name_into_instance,
)
from flashsmith.errors import DeviceError, EmulatorFault, KernelNotFoundError
from flashsmith.jit import (
    Library,
    Progress,
    Target,
    build_library,
    built_instances,
    find_library,
)
from flashsmith.runtime.extras import CAUSAL_EXTRAS, FULL_EXTRAS, Extras
from flashsmith.runtime.plan import Plan

# The kinds that the libraries throw, beside Python's own.
tvm_ffi.register_error("EmulatorFault", EmulatorFault)
tvm_ffi.register_error("DeviceError", DeviceError)


@dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel of a loaded library."""

    instance: KernelId
    module: Any  # the library's tvm_ffi module
    # Functions of its library, of q, k, v, o, lse, workspace, softmax_scale and the extras.
    operations: Mapping[str, Callable[..., Any]]

    def plan(
        self, q: Any, k: Any, v: Any, o: Any, *, lse: Any = None, extras: Extras = FULL_EXTRAS
    ) -> Plan:
        """What a call on such tensors does; their memory is not looked at.

        Raises:
            ValueError, TypeError: Shapes, dtypes or devices that this kernel does not take.
            DeviceError: The GPU could not be asked.
        """
        return Plan.of(self.operations["plan"](q, k, v, o, lse, None, 1.0, *extras))

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        o: Any,
        softmax_scale: float,
        timed: bool = False,
        *,
        lse: Any = None,
        workspace: Any = None,
        extras: Extras | None = None,
    ) -> float:
        """o = softmax(q k^T * softmax_scale) v, on the current stream of the tensors' device.

        Args:
            q: (batch, seq_len_q, n_heads, d_head), a tensor that speaks DLPack, of the
                configuration's dtype and on the device of all others.
            k: (batch, seq_len_k, n_heads_kv, d_head).
            v: (batch, seq_len_k, n_heads_kv, d_v).
            o: (batch, seq_len_q, n_heads, d_v): overwritten.
            softmax_scale: Factor on q k^T.
            timed: Wait for the result and measure.
            lse: (batch, n_heads, seq_len_q), float32, contiguous: overwritten with the natural
                logarithm of the sum of the exponentials.
            workspace: What ``workspace_for`` gives for the call's plan; no launch that may run at
                the same time may have the same.
            extras: What the kernel's variant takes besides; None: nothing, or a causal mask.

        Returns:
            Milliseconds between two events around the launch if ``timed``, else 0.

        Raises:
            ValueError, TypeError: The tensors are none that this kernel takes; names the tensor.
            DeviceError: The GPU is too old, or refused the launch.
            EmulatorFault: The kernel broke a rule on the emulator.
        """
        if extras is None:
            extras = CAUSAL_EXTRAS if self.instance.variant.causal else FULL_EXTRAS
        tensors = q, k, v, o, lse, workspace
        return float(self.operations["forward"](timed, *tensors, softmax_scale, *extras))

    def repeatable(
        self,
        q: Any,
        k: Any,
        v: Any,
        o: Any,
        lse: Any,
        workspace: Any,
        softmax_scale: float,
        extras: Extras,
    ) -> Callable[..., bool]:
        """Makes a call, as ``__call__`` does, and returns a function that makes it again.

        It takes what this method takes, and the extras one by one, or none if they are numbers that
        stay. It returns whether it did: it does nothing for tensors that do not look like these,
        and where other work may have the workspace, on another stream or in a CUDA graph.
        """
        tensors = q, k, v, o, lse, workspace
        return self.operations["repeatable"](*tensors, softmax_scale, *extras)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Loaded:
    """A library in this process."""

    library: Library
    module: Any  # its tvm_ffi module
    handles: dict[str, int]  # of its kernels, by name

    @classmethod
    def load(cls, library: Library) -> _Loaded:
        module = tvm_ffi.load_module(str(library.path))
        handles = {str(name): handle for handle, name in enumerate(module.kernels())}
        return cls(library, module, handles)

    def find(self, instance: KernelId) -> Kernel | None:
        handle = self.handles.get(instance.name)
        if handle is None:
            return None
        operations = self.module.operations(handle)
        by_name = {str(name): operations[name] for name in operations}
        return Kernel(instance, self.module, by_name)


_lock = threading.Lock()
_loaded: dict[Target, list[_Loaded]] = {}  # newest first
_found: dict[Target, dict[KernelId, Kernel]] = {}


def load_library(library: Library, target: Target | None = None) -> None:
    """Loads a library, and has ``find_kernel`` take its kernels for ``target``.

    target: One that the library covers; default: exactly the library's own. Its kernels come before
        those of libraries that were loaded before.
    """
    target = target or library.target
    loaded = _Loaded.load(library)
    with _lock:
        others = [each for each in _loaded.get(target, []) if each.library.path != library.path]
        _loaded[target] = [loaded, *others]
        _found[target] = {}


def loaded_instances(target: Target) -> set[KernelId]:
    """The kernels of the libraries loaded for ``target``, by their manifests."""
    return {
        parse_kernel_name_into_instance(kernel["name"])
        for loaded in _loaded.get(target, [])
        for kernel in loaded.library.kernels.values()
    }


def existing_instances(target: Target) -> set[KernelId]:
    """The kernels that ``find_kernel`` finds without building."""
    return loaded_instances(target) | built_instances(target)


def is_loaded(instance: KernelId, target: Target) -> bool:
    return _find_loaded(instance, target) is not None


def is_at_hand(instance: KernelId, target: Target) -> bool:
    """Whether ``find_kernel`` finds the kernel without building it."""
    return is_loaded(instance, target) or find_library([instance], target) is not None


def find_kernel(instance: KernelId, target: Target, progress: Progress | None = None) -> Kernel:
    """The kernel of ``instance``: a loaded one, else from the cache, else built now.

    Raises:
        KernelNotFoundError: FLASHSMITH_BUILD forbids to build and no library holds it; names the
            closest that exist.
        ValueError: The configuration is illegal for the target.
        ToolchainError, BuildError, CacheError: Building failed.
    """
    kernel = _find_loaded(instance, target)
    if kernel is not None:
        return kernel
    library = load_kernels([instance], target, progress)
    if library is None:
        raise _not_found(instance, target)
    kernel = _look_up(instance, target)
    if kernel is None:  # its manifest says otherwise
        raise KernelNotFoundError(f"library {library.path} lacks its kernel {instance}")
    return kernel


def load_kernels(
    instances: Collection[KernelId],
    target: Target,
    progress: Progress | None = None,
) -> Library | None:
    """Has all kernels in one loaded library: the cache's, else one that is built now.

    Returns:
        The library; None where none has them all and FLASHSMITH_BUILD forbids to build it:
        ``find_kernel`` finds those that other libraries hold.

    Raises:
        ValueError: A configuration is illegal for the target.
        ToolchainError, BuildError, CacheError: Building failed.
    """
    library = find_library(instances, target)
    if library is None and settings.BUILD.get() is not False:
        library = build_library(instances, target, progress=progress)
    if library is not None:
        load_library(library, target)
    return library


def find_kernels(
    instances: Collection[KernelId], target: Target, progress: Progress | None = None
) -> list[Kernel]:
    """All of them: in one library where ``load_kernels`` has one. Raises as ``find_kernel``."""
    load_kernels(instances, target, progress)
    return [find_kernel(each, target) for each in instances]


def _find_loaded(instance: KernelId, target: Target) -> Kernel | None:
    return _found.get(target, {}).get(instance) or _look_up(instance, target)


def _look_up(instance: KernelId, target: Target) -> Kernel | None:
    """In the loaded libraries; what is found is remembered."""
    with _lock:
        for loaded in _loaded.get(target, []):
            if kernel := loaded.find(instance):
                return _found[target].setdefault(instance, kernel)
    return None


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


def find_distance(a: ForwardKernelConfig, b: ForwardKernelConfig) -> int:
    """In how many fields two configurations differ; those of two families in more than any of
    one."""
    if type(a) is not type(b):
        return max(len(fields(a)), len(fields(b))) + 1
    return sum(getattr(a, field.name) != getattr(b, field.name) for field in fields(a))
