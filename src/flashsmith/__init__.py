"""FlashAttention kernels for NVIDIA GPUs, declared as configurations in Python.

    import flashsmith
    o = flashsmith.attention(q, k, v, causal=True)    # a configuration is picked for you
    o = flashsmith.forward(cfg, q, k, v)              # this one: see flashsmith.configs

Importing this module loads nothing but the standard library; a name loads what it needs when it is
first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flashsmith.version import __version__

if TYPE_CHECKING:
    from flashsmith import codegen, configs, errors, jit, ops, runtime, settings
    from flashsmith.configs import DType, FlashForwardKernelConfig, Variant
    from flashsmith.ops.forward import attention, forward

__all__ = [
    "DType",
    "FlashForwardKernelConfig",
    "Variant",
    "__version__",
    "attention",
    "codegen",
    "configs",
    "errors",
    "forward",
    "jit",
    "ops",
    "runtime",
    "settings",
]

# PEP 562: where each name lives.
_HOMES = {
    "DType": "flashsmith.configs",
    "FlashForwardKernelConfig": "flashsmith.configs",
    "Variant": "flashsmith.configs",
    "attention": "flashsmith.ops.forward",
    "forward": "flashsmith.ops.forward",
}
_SUBMODULES = ("codegen", "configs", "errors", "jit", "ops", "runtime", "settings")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"flashsmith.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'flashsmith' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
