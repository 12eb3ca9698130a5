"""Finds and loads the C++ build of FlashAttention-3's operators.

The packages flash_attn_3 (upstream) and xformers have it as their module ``flash_attn_3._C``, which
registers ``torch.ops.flash_attn_3``. vLLM has a build without the backward, but with FP8, which
registers ``torch.ops._vllm_fa3_C``. FLASHSMITH_FA3_LIBRARY may name a file from one of them.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import torch

from flashsmith import settings
from flashsmith.errors import DeviceError

_MODULES = ("flash_attn_3._C", "xformers.flash_attn_3._C", "vllm.vllm_flash_attn._vllm_fa3_C")
_UPSTREAM, _VLLM = "flash_attn_3", "_vllm_fa3_C"
# vLLM's operator has no defaults, so it gets these of upstream's; None for all others.
_DEFAULTS_OF_VLLM = {
    "is_causal": False,
    "window_size_left": -1,
    "window_size_right": -1,
    "softcap": 0.0,
    "is_rotary_interleaved": False,
    "num_splits": 0,
    "sm_margin": 0,
    "cp_world_size": 1,
    "cp_rank": 0,
}
_HASH_LENGTH = 16
_CHUNK_BYTES = 16 << 20  # the library has hundreds of MB

_loaded: set[Path] = set()  # loaded by this module


def why_missing() -> str:
    """Returns why the operators are missing; "" if they are registered or can be loaded."""
    if _are_registered():
        return ""
    for setting in (settings.FA3_LIBRARY, settings.FA3_CUDART):
        path = setting.get()
        if path is not None and not path.is_file():
            return f"there is no file {setting.name}={path}"
    if _find_library() is None:
        return (
            "none of flash_attn_3, xformers and vllm is installed; install one of them, or set "
            f"{settings.FA3_LIBRARY.name} to the library with FlashAttention-3 of one of them"
        )
    return ""


class _VllmOperators:
    """vLLM's operators, which have no defaults, behind upstream's signature."""

    def fwd(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Any:
        operator = torch.ops._vllm_fa3_C.fwd
        names = [argument.name for argument in operator.default._schema.arguments[3:]]
        return operator(q, k, v, *[given.get(n, _DEFAULTS_OF_VLLM.get(n)) for n in names])


def load_operators() -> Any:
    """Returns upstream's operators or vLLM's; loads the library if none is registered.

    Their fwd takes q, k and v as (batch, seq_len, n_heads, d_head) and returns o and three others.

    Raises:
        OSError: The library cannot be loaded.
        DeviceError: There is no library, or it does not register FlashAttention-3.
    """
    if not _are_registered():
        if (library := _find_library()) is None:
            raise DeviceError(why_missing())
        _load(library)
        if not _are_registered():
            raise DeviceError(f"{library} registers no operator torch.ops.{_UPSTREAM}.fwd")
    return torch.ops.flash_attn_3 if _is_registered(_UPSTREAM) else _VllmOperators()


def build() -> str:
    """Returns the end of the library's path and the first digits of its SHA-256."""
    library = _find_library()
    if library is None or (_are_registered() and library not in _loaded):
        return "registered by something else in this process"
    return f"{library.parent.name}/{library.name} sha256 {_hash(library)}"


def _are_registered() -> bool:
    return _is_registered(_UPSTREAM) or _is_registered(_VLLM)


def _is_registered(namespace: str) -> bool:
    return hasattr(getattr(torch.ops, namespace), "fwd")


def _find_library() -> Path | None:
    if (chosen := settings.FA3_LIBRARY.get()) is not None:
        return chosen
    for name in _MODULES:
        try:
            spec = importlib.util.find_spec(name)
        except ImportError:  # the package is not installed
            continue
        if spec is not None and spec.origin is not None:
            return Path(spec.origin)
    return None


def _load(library: Path) -> None:
    if (runtime := settings.FA3_CUDART.get()) is not None:
        ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    _loaded.add(library)


@cache
def _hash(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()[:_HASH_LENGTH]
