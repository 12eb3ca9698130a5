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

if TYPE_CHECKING:
    from flashsmith import build, codegen, configs, errors, functional, runtime, settings
    from flashsmith.configs import DType, FlashForwardKernelConfig, ForwardVariant
    from flashsmith.functional import attention, forward

__version__ = "0.1.0"

__all__ = [
    "DType",
    "FlashForwardKernelConfig",
    "ForwardVariant",
    "__version__",
    "attention",
    "build",
    "codegen",
    "configs",
    "errors",
    "forward",
    "functional",
    "runtime",
    "settings",
]

# PEP 562: where each name lives.
_HOMES = {
    "DType": "flashsmith.configs",
    "FlashForwardKernelConfig": "flashsmith.configs",
    "ForwardVariant": "flashsmith.configs",
    "attention": "flashsmith.functional",
    "forward": "flashsmith.functional",
}
_SUBMODULES = ("build", "codegen", "configs", "errors", "functional", "runtime", "settings")


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
