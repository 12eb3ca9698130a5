"""Attention as operators of torch: what torch.compile and torch.export see of it.

``attend`` calls ``flashsmith.attention`` itself where nothing is traced: going through torch's
dispatcher would cost a call more than the rest of its host code does.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from flashsmith.configs import ForwardKernelConfig, parse_kernel_name_into_config
from flashsmith.integrations.arguments import refuse_gradients
from flashsmith.ops.forward import attention

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
# The same into a tensor that is given.
_library.define(
    "attention_forward_out(Tensor q, Tensor k, Tensor v, Tensor(o!) out, bool return_lse=False, "
    f"{_ARGUMENTS}) -> Tensor"
)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    window_size: tuple[int, int] = (-1, -1),
    out: torch.Tensor | None = None,
    config: ForwardKernelConfig | None = None,
    return_lse: bool = False,
    **semantics: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``flashsmith.attention``, which is one operator to whatever traces it.

    Args, returns: as there; without score_mod, mask_mod and block_mask.
    """
    if q.requires_grad or k.requires_grad or v.requires_grad:
        refuse_gradients(q=q, k=k, v=v)
    if not torch.compiler.is_compiling() and type(q) is torch.Tensor:
        return attention(
            q, k, v, window_size=window_size, out=out, config=config, return_lse=return_lse,
            **semantics,
        )  # fmt: skip
    window_left, window_right = window_size
    keywords = semantics | {
        "window_left": window_left,
        "window_right": window_right,
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
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    causal: bool = False,
    top_left: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    config: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the operators compute; the arguments in the order of their schemas."""
    result = attention(
        q,
        k,
        v,
        causal=causal,
        softmax_scale=softmax_scale,
        window_size=(window_left, window_right),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        bias=bias,
        top_left=top_left,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        out=out,
        config=None if config is None else _parsed(config),
        return_lse=return_lse,
    )
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
