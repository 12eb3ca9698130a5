"""From a configuration to a kernel that can be called: loaded, found in the cache, or built."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import tvm_ffi

from flashsmith import settings
from flashsmith.build import (
    Library,
    Progress,
    Target,
    build_library,
    built_instances,
    find_library,
)
from flashsmith.configs import (
    DType,
    FlashForwardKernelConfig,
    ForwardKernelInstance,
    ForwardVariant,
)
from flashsmith.errors import DeviceError, EmulatorFault, KernelNotFoundError

# The kinds that the libraries throw, beside Python's own.
tvm_ffi.register_error("EmulatorFault", EmulatorFault)
tvm_ffi.register_error("DeviceError", DeviceError)


@dataclass(frozen=True)
class Kernel:
    """One kernel of a loaded library."""

    instance: ForwardKernelInstance
    module: Any  # the library's tvm_ffi module
    handle: int
    entry: Any  # its function `forward`

    def __call__(
        self, q: Any, k: Any, v: Any, o: Any, softmax_scale: float, timed: bool = False
    ) -> float:
        """o = softmax(q k^T * softmax_scale) v, on the current stream of the tensors' device.

        Args:
            q, k, v, o: (batch, seq_len, n_heads, d_head) tensors that speak DLPack, of the
                configuration's dtype, on one device; o is overwritten.
            softmax_scale: Factor on q k^T.
            timed: Wait for the result and measure.

        Returns:
            Milliseconds between two events around the launch if ``timed``, else 0.

        Raises:
            ValueError, TypeError: The tensors are none that this kernel takes; names the tensor.
            DeviceError: The GPU is too old, or refused the launch.
            EmulatorFault: The kernel broke a rule on the emulator.
        """
        return float(self.entry(self.handle, q, k, v, o, softmax_scale, timed))


_lock = threading.Lock()
_kernels: dict[Target, dict[ForwardKernelInstance, Kernel]] = {}


def load_library(library: Library, target: Target | None = None) -> list[Kernel]:
    """Loads a library, and has ``find_kernel`` take its kernels for ``target``.

    target: One that the library covers; default: exactly the library's own. A kernel of an instance
        that was loaded before replaces the earlier.
    """
    module = tvm_ffi.load_module(str(library.path))
    entry = module.forward
    kernels = [
        Kernel(_instance(field_values), module, handle, entry)
        for handle, field_values in enumerate(module.kernels())
    ]
    with _lock:
        known = _kernels.setdefault(target or library.target, {})
        known.update({kernel.instance: kernel for kernel in kernels})
    return kernels


def loaded_kernels(target: Target) -> dict[ForwardKernelInstance, Kernel]:
    """The kernels loaded for ``target``, by instance."""
    return dict(_kernels.get(target, {}))


def find_kernel(
    instance: ForwardKernelInstance, target: Target, progress: Progress | None = None
) -> Kernel:
    """The kernel of ``instance``: a loaded one, else from the cache, else built now.

    Raises:
        KernelNotFoundError: FLASHSMITH_BUILD forbids to build and no library holds it; names the
            closest that exist.
        ValueError: The configuration is illegal for the target.
        ToolchainError, BuildError, CacheError: Building failed.
    """
    kernel = _kernels.get(target, {}).get(instance)
    if kernel is not None:
        return kernel
    library = find_library([instance], target)
    if library is None:
        if settings.BUILD.get() is False:
            raise _not_found(instance, target)
        library = build_library([instance], target, progress=progress)
    load_library(library, target)
    return _kernels[target][instance]


def _instance(values: Iterable[int]) -> ForwardKernelInstance:
    """From the fields as the library lists them: those of the configuration, then `causal`."""
    *config_values, causal = map(int, values)
    named = dict(zip(_CONFIG_FIELDS, config_values, strict=True))
    typed = {name: _FIELD_TYPES[name](value) for name, value in named.items()}
    return ForwardKernelInstance(
        FlashForwardKernelConfig(**typed), ForwardVariant(causal=bool(causal))
    )


_CONFIG_FIELDS = [field.name for field in fields(FlashForwardKernelConfig)]
_FIELD_TYPES: dict[str, Any] = {
    field.name: {"DType": DType, "int": int, "bool": bool}[str(field.type)]
    for field in fields(FlashForwardKernelConfig)
}


def _not_found(instance: ForwardKernelInstance, target: Target) -> KernelNotFoundError:
    existing = {*loaded_kernels(target), *built_instances(target)}
    alike = sorted(k for k in existing if k.variant == instance.variant)
    closest = sorted(alike, key=lambda other: _distance(other.config, instance.config))[:3]
    have = "; ".join(k.name for k in closest) or "none"
    return KernelNotFoundError(
        f"config {instance.name} is in no library for {target.name}, and FLASHSMITH_BUILD=0 "
        f"forbids to build it. Closest that exist: {have}. Run `flashsmith build` for it, or use "
        "one of these."
    )


def _distance(a: FlashForwardKernelConfig, b: FlashForwardKernelConfig) -> int:
    """In how many fields two configurations differ."""
    return sum(getattr(a, name) != getattr(b, name) for name in _CONFIG_FIELDS)
