"""Attention as operators of torch: what torch.compile and torch.export see of it.

``attention`` calls them where something traces it alone: going through torch's dispatcher would
cost a call more than the rest of its host code does.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from flashsmith.configs import ForwardKernelConfig, parse_kernel_name_into_config
from flashsmith.ops.checks import refuse_gradients
from flashsmith.ops.forward import run_attention

# After the tensors and ``return_lse``. Nothing is for keywords alone, because torch registers
# gradients of no such tensors.
_ARGUMENTS = (
    "Tensor? alibi_slopes=None, Tensor? sinks=None, Tensor? bias=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, "
    "SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, "
    "bool causal=False, bool top_left=False, SymInt window_left=-1, SymInt window_right=-1, "
    "float? softmax_scale=None, float softcap=0.0, str? config=None"
)

_library: Any = torch.library.Library("flashsmith", "DEF")  # type: ignore[no-untyped-call]
# Returns o and the log-sum-exp, which is empty where it is not asked for.
_library.define(
    f"attention_forward(Tensor q, Tensor k, Tensor v, bool return_lse=False, {_ARGUMENTS}) "
    "-> (Tensor, Tensor)"
)
_SCHEMA = torch.ops.flashsmith.attention_forward.default._schema
_DEFAULTS = {each.name: each.default_value for each in _SCHEMA.arguments[4:]}  # of _ARGUMENTS
# The same into a tensor that is given.
_library.define(
    "attention_forward_out(Tensor q, Tensor k, Tensor v, Tensor(o!) out, bool return_lse=False, "
    f"{_ARGUMENTS}) -> Tensor"
)


def call_operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    softmax_scale: float | None,
    out: torch.Tensor | None,
    config: ForwardKernelConfig | None,
    return_lse: bool,
    semantics: Mapping[str, Any] | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``run_attention``, as one operator to whatever traces it.

    Args, returns: as there; without score_mod, mask_mod and block_mask.
    """
    keywords = dict(semantics or {})
    tensors = {name: each for name, each in keywords.items() if isinstance(each, torch.Tensor)}
    refuse_gradients(q=q, k=k, v=v, **tensors)
    keywords["window_left"], keywords["window_right"] = keywords.pop("window_size", (-1, -1))
    keywords |= {
        "causal": causal,
        "softmax_scale": softmax_scale,
        "config": None if config is None else str(config),
        "return_lse": return_lse,
    }
    if out is None:
        o, lse = torch.ops.flashsmith.attention_forward(q, k, v, **keywords)
    else:
        o, lse = out, torch.ops.flashsmith.attention_forward_out(q, k, v, out, **keywords)
    return (o, lse) if return_lse else o


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *arguments: Any, **keywords: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return _call(q, k, v, None, *arguments, **keywords)


def _forward_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *arguments: Any,
    **keywords: Any,
) -> torch.Tensor:
    return _call(q, k, v, out, *arguments, **keywords)[1]


def _call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor | None,
    return_lse: bool = False,
    *arguments: Any,
    **keywords: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the operators compute; the arguments in the order of their schemas."""
    given = dict(zip(_DEFAULTS, arguments, strict=False)) | keywords
    semantics = {
        name: each
        for name, each in given.items()
        if isinstance(each, torch.Tensor) or each != _DEFAULTS[name]
    }
    causal, scale = semantics.pop("causal", False), semantics.pop("softmax_scale", None)
    name = semantics.pop("config", None)
    window = semantics.pop("window_left", -1), semantics.pop("window_right", -1)
    if window != (-1, -1):
        semantics["window_size"] = window
    config = None if name is None else _parsed(name)
    result = run_attention(q, k, v, causal, scale, out, config, return_lse, semantics)
    return result if isinstance(result, tuple) else (result, _no_lse(q))


@functools.cache
def _parsed(config: str) -> ForwardKernelConfig:
    """One object for each name: calls are told apart by it."""
    return parse_kernel_name_into_config(config)


def _fake_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    return_lse: bool = False,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty((*q.shape[:-1], v.shape[-1])), _fake_lse(q, return_lse)


def _fake_forward_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    return_lse: bool = False,
    *_: Any,
    **__: Any,
) -> torch.Tensor:
    return _fake_lse(q, return_lse)


def _fake_lse(q: torch.Tensor, return_lse: bool) -> torch.Tensor:
    *batch, seq_len, heads, _ = q.shape
    return q.new_empty((*batch, heads, seq_len), dtype=torch.float32) if return_lse else _no_lse(q)


def _no_lse(q: torch.Tensor) -> torch.Tensor:
    return q.new_empty(0, dtype=torch.float32)


def _no_backward(context: Any, *gradients: torch.Tensor) -> None:
    raise NotImplementedError(
        "flashsmith::attention_forward has no backward kernel yet; "
        "call under torch.no_grad(), or detach its arguments"
    )


for _key in ("CUDA", "CPU"):
    _library.impl("attention_forward", _forward, _key)
    _library.impl("attention_forward_out", _forward_out, _key)
torch.library.register_fake("flashsmith::attention_forward", _fake_forward, lib=_library)
torch.library.register_fake("flashsmith::attention_forward_out", _fake_forward_out, lib=_library)
torch.library.register_autograd("flashsmith::attention_forward", _no_backward, lib=_library)
