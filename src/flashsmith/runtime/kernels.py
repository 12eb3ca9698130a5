"""From a configuration to a kernel that can be called: loaded, found in the cache, or built."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
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
    CONFIG_CLASSES,
    DType,
    ForwardKernelConfig,
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
    ) -> float:
        """o = softmax(q k^T * softmax_scale) v, on the current stream of the tensors' device.

        Args:
            q, o: (batch, seq_len_q, n_heads, d_head) tensors that speak DLPack, of the
                configuration's dtype, on one device; o is overwritten.
            k, v: (batch, seq_len_k, n_heads_kv, d_head); the sm80 family wants them as q.
            softmax_scale: Factor on q k^T.
            timed: Wait for the result and measure.
            lse: (batch, n_heads, seq_len_q), float32, contiguous: overwritten with the natural
                logarithm of the sum of the exponentials; sm90 family only.
            workspace: At least ``instance.config.workspace_bytes`` zeros, which the launch leaves
                zero; no launch that may run at the same time may have the same.

        Returns:
            Milliseconds between two events around the launch if ``timed``, else 0.

        Raises:
            ValueError, TypeError: The tensors are none that this kernel takes; names the tensor.
            DeviceError: The GPU is too old, or refused the launch.
            EmulatorFault: The kernel broke a rule on the emulator.
        """
        return float(self.entry(self.handle, q, k, v, o, lse, workspace, softmax_scale, timed))


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


def _instance(row: Iterable[int]) -> ForwardKernelInstance:
    """From a kernel as the library lists it: family, `causal`, fields of the configuration."""
    family, causal, *values = map(int, row)
    (kind,) = (kind for kind in CONFIG_CLASSES if kind.family == family)
    types: dict[str, Callable[[int], Any]] = {"DType": DType, "int": int, "bool": bool}
    config = kind(
        *(types[str(field.type)](value) for field, value in zip(fields(kind), values, strict=True))
    )
    return ForwardKernelInstance(config, ForwardVariant(causal=bool(causal)))


def _not_found(instance: ForwardKernelInstance, target: Target) -> KernelNotFoundError:
    existing = {*loaded_kernels(target), *built_instances(target)}
    alike = sorted(
        k
        for k in existing
        if k.variant == instance.variant and type(k.config) is type(instance.config)
    )
    closest = sorted(alike, key=lambda other: _distance(other.config, instance.config))[:3]
    have = "; ".join(k.name for k in closest) or "none"
    return KernelNotFoundError(
        f"config {instance.name} is in no library for {target.name}, and FLASHSMITH_BUILD=0 "
        f"forbids to build it. Closest that exist: {have}. Run `flashsmith build` for it, or use "
        "one of these."
    )


def _distance(a: ForwardKernelConfig, b: ForwardKernelConfig) -> int:
    """In how many fields two configurations of a family differ."""
    return sum(getattr(a, field.name) != getattr(b, field.name) for field in fields(a))
