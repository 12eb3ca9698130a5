"""FlashAttention kernels for NVIDIA GPUs, declared as configurations in Python.

    import flashsmith

    o = flashsmith.attention(q, k, v, causal=True)  # a configuration is chosen for you
    o = flashsmith.forward(cfg, q, k, v)  # this one: see flashsmith.configs
    o = flashsmith.decode(None, q, k_cache, v_cache, cache_seqlens=lengths)

flash_attn and integrations have the functions of other libraries, with their arguments.

Importing this module loads nothing but the standard library; a name loads what it needs when it is
first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flashsmith.importing import after_import
from flashsmith.version import __version__

if TYPE_CHECKING:
    from flashsmith import (
        codegen,
        configs,
        errors,
        flash_attn,
        integrations,
        jit,
        ops,
        runtime,
        settings,
    )
    from flashsmith.configs import DType, FlashForwardKernelConfig, Variant
    from flashsmith.flash_attn.install import install_as_flash_attn
    from flashsmith.integrations.flex import flex_attention
    from flashsmith.integrations.sdpa import scaled_dot_product_attention
    from flashsmith.mods.block_mask import BlockMask, create_block_mask
    from flashsmith.ops.attention import attention
    from flashsmith.ops.backward import backward
    from flashsmith.ops.decode import decode
    from flashsmith.ops.forward import forward
    from flashsmith.reference.dropout import dropout_mask, dropout_scale

__all__ = [
    "BlockMask",
    "DType",
    "FlashForwardKernelConfig",
    "Variant",
    "__version__",
    "attention",
    "backward",
    "codegen",
    "configs",
    "create_block_mask",
    "decode",
    "dropout_mask",
    "dropout_scale",
    "errors",
    "flash_attn",
    "flex_attention",
    "forward",
    "install_as_flash_attn",
    "integrations",
    "jit",
    "ops",
    "runtime",
    "scaled_dot_product_attention",
    "settings",
]

# PEP 562: where each name lives.
_HOMES = {
    "BlockMask": "flashsmith.mods.block_mask",
    "create_block_mask": "flashsmith.mods.block_mask",
    "DType": "flashsmith.configs",
    "FlashForwardKernelConfig": "flashsmith.configs",
    "Variant": "flashsmith.configs",
    "attention": "flashsmith.ops.attention",
    "dropout_mask": "flashsmith.reference.dropout",
    "dropout_scale": "flashsmith.reference.dropout",
    "backward": "flashsmith.ops.backward",
    "decode": "flashsmith.ops.decode",
    "flex_attention": "flashsmith.integrations.flex",
    "forward": "flashsmith.ops.forward",
    "install_as_flash_attn": "flashsmith.flash_attn.install",
    "scaled_dot_product_attention": "flashsmith.integrations.sdpa",
}
_SUBMODULES = (
    "codegen",
    "configs",
    "errors",
    "flash_attn",
    "integrations",
    "jit",
    "ops",
    "runtime",
    "settings",
)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return _import(f"flashsmith.{name}")
    if name in _HOMES:
        value = getattr(_import(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'flashsmith' has no attribute {name!r}")


def _import(module: str) -> Any:
    from flashsmith.errors import explaining_missing  # a bare import loads no submodule

    with explaining_missing():
        return importlib.import_module(module)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# FlopCounterMode knows the operators that were registered before it began, so flashsmith's may not
# wait for their first use. They do wait for the counter, whose module imports Triton.
after_import("torch.utils.flop_counter", lambda: _import("flashsmith.ops.flops").register())
