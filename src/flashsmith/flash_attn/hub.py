"""The functions of flashsmith as a kernel of the Hugging Face Hub: see `flashsmith hub`.

They are flashsmith's own, with one more name: transformers passes the sinks as ``s_aux``, and to a
function without an argument of that name it passes none.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from flashsmith.errors import explaining_missing

with explaining_missing():
    from flashsmith import flash_attn
    from flashsmith.ops.attention import attention
    from flashsmith.ops.decode import decode

__all__ = [
    "attention",
    "decode",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
]


def _with_s_aux(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with the argument ``s_aux``, another name of ``sinks``."""

    @functools.wraps(function)
    def with_s_aux(*args: Any, s_aux: Any = None, **kwargs: Any) -> Any:
        if s_aux is not None:
            if kwargs.get("sinks") is not None:
                raise TypeError("sinks and s_aux are given, which are the same; pass one of them")
            kwargs["sinks"] = s_aux
        return function(*args, **kwargs)

    signature = inspect.signature(function)
    added = inspect.Parameter("s_aux", inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters = [*signature.parameters.values(), added]
    with_s_aux.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_s_aux


flash_attn_func = _with_s_aux(flash_attn.flash_attn_func)
flash_attn_varlen_func = _with_s_aux(flash_attn.flash_attn_varlen_func)
flash_attn_with_kvcache = _with_s_aux(flash_attn.flash_attn_with_kvcache)
