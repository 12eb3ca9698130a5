"""Converts FlashAttention's arguments to arguments of ``flashsmith.attention``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flashsmith.configs import ForwardKernelConfig
from flashsmith.flash_attn.probabilities import no_weights, signed_weights
from flashsmith.integrations.arguments import (
    check_dimensions,
    check_types,
    float32,
)
from flashsmith.integrations.heads import attend_spec_of_any_head, readable
from flashsmith.integrations.pages import attend_pages_of_a_model
from flashsmith.ops.backward import run_backward
from flashsmith.ops.checks import check_flags, check_tensors
from flashsmith.ops.dropout import dropout_keywords
from flashsmith.ops.gate import explain
from flashsmith.ops.spec import (
    CAUSAL,
    FULL,
    NO_WINDOW,
    OFF,
    AttentionSpec,
    keywords_of,
    make_spec,
    normal_window,
    tensors_of,
)
from flashsmith.reference.dropout import check_dropout
from flashsmith.runtime import GradientTensors

Window = tuple[int, int]
Result = torch.Tensor | tuple[torch.Tensor, ...]


def specification(
    *,
    causal: bool,
    softmax_scale: float | None,
    window_size: Window | torch.Tensor,
    softcap: float,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | torch.Tensor | None = None,
    max_seqlen_k: int | torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
) -> AttentionSpec:
    """Returns the specification of a call, without dropout.

    As in FlashAttention, a softcap below 0 means none, and the sides of a window and the max
    lengths may be tensors.
    """
    if type(causal) is not bool:
        check_flags(causal=causal)
    if softcap is not OFF and type(softcap) in (int, float) and softcap <= 0:
        softcap = OFF
    if window_size is not NO_WINDOW:
        window_size = normal_window(sides(window_size))
    if sinks is not None:
        sinks = float32("sinks", sinks)
    if (
        softmax_scale is None
        and alibi_slopes is sinks is cu_seqlens_q is cu_seqlens_k is None
        and softcap is OFF
        and window_size is NO_WINDOW
        and max_seqlen_q is max_seqlen_k is seqused_q is seqused_k is block_table is None
    ):
        return CAUSAL if causal else FULL
    return make_spec(
        causal, softmax_scale, window_size, softcap, alibi_slopes, sinks, None, False,
        cu_seqlens_q, cu_seqlens_k, _number(max_seqlen_q), _number(max_seqlen_k),
        seqused_q, seqused_k, block_table, 0, None, None, 1, OFF, None, None, None, None,
    )  # fmt: skip


def call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    dropout_p: float,
    deterministic: bool,
    return_attn_probs: bool,
    *,
    return_lse: bool,
    out: torch.Tensor | None = None,
    config: ForwardKernelConfig | None = None,
) -> Result:
    """Makes a public function's call and returns its result."""
    if not type(deterministic) is type(return_attn_probs) is type(return_lse) is bool:
        check_flags(
            deterministic=deterministic, return_attn_probs=return_attn_probs, return_lse=return_lse
        )
    if dropout_p is not OFF and (type(dropout_p) is not float or dropout_p != 0.0):
        spec = with_dropout(spec, q, dropout_p)
    with_lse = return_lse or return_attn_probs
    result = forward(q, k, v, spec, out, config, with_lse, deterministic)
    if return_attn_probs:
        return *result, probabilities(q, k, spec)
    return result


def with_dropout(
    spec: AttentionSpec, q: torch.Tensor, dropout_p: float, rng_state: torch.Tensor | None = None
) -> AttentionSpec:
    """Returns the specification with dropout, and a new state if none is given; unchanged for 0."""
    if not check_dropout(dropout_p):
        return spec
    return spec._replace(**dropout_keywords(q, dropout_p, rng_state))


def probabilities(q: torch.Tensor, k: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
    """Returns S_dmask, which FlashAttention fills under dropout alone."""
    return no_weights(q) if spec.rng_state is None else signed_weights(q, k, spec)


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    out: torch.Tensor | None = None,
    config: ForwardKernelConfig | None = None,
    with_lse: bool = False,
    deterministic: bool = False,
    splits: int = 0,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Returns out, or with ``with_lse`` out and the log-sum-exp.

    splits: See ``decode``; used only for paged keys.
    """
    try:
        if spec.block_table is None:
            return attend_spec_of_any_head(q, k, v, spec, out, config, with_lse, deterministic)
        return attend_pages_of_a_model(
            q, k, v, splits=splits, out=out, config=config, return_lse=with_lse,
            deterministic=deterministic, **keywords_of(spec),
        )  # fmt: skip
    except Exception:
        check_types(q=q, k=k, v=v)
        explain(q=q, k=k, v=v, out=out, **tensors_of(spec))
        raise


def backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    into: Sequence[torch.Tensor | None],
    spec: AttentionSpec,
    *,
    dropout_p: float,
    rng_state: torch.Tensor | None,
    deterministic: bool,
) -> torch.Tensor:
    """Writes the gradients of ``forward`` into dq, dk and dv; returns the row sums of dout * out.

    rng_state: The forward's state, read if dropout_p is above 0.
    """
    check_flags(deterministic=deterministic)
    check_types(dout=dout, q=q, k=k, v=v, out=out, softmax_lse=softmax_lse)
    if check_dropout(dropout_p):
        spec = spec._replace(dropout_p=dropout_p, rng_state=rng_state)
    check_tensors(**tensors_of(spec))
    q, k, v, dout, out = map(readable, (q, k, v, dout.detach(), out.detach()))
    tensors = GradientTensors(q, k, v, out, softmax_lse.contiguous(), dout, *into)
    run_backward(tensors, spec, deterministic=deterministic)
    return (dout.float() * out.float()).sum(-1).transpose(-1, -2)


def unpacked(
    name: str, t: torch.Tensor, before: Sequence[str], parts: int
) -> Sequence[torch.Tensor]:
    """Returns q, k and v, or k and v, as views of a tensor that stacks them."""
    check_dimensions((*before, str(parts), "nheads", "headdim"), **{name: t})
    if t.shape[-3] != parts:
        raise ValueError(
            f"{name} has shape {tuple(t.shape)}; expected {parts} in dimension {t.ndim - 3}: "
            f"({', '.join(before)}, {parts}, nheads, headdim)"
        )
    return t.unbind(-3)


def sides(window_size: Window | torch.Tensor) -> Any:
    """Returns the sides of a window, which may be in a tensor."""
    return tuple(window_size.tolist()) if isinstance(window_size, torch.Tensor) else window_size


def _number(length: int | torch.Tensor | None) -> Any:
    if length is None or type(length) is int:
        return length
    return length.item() if isinstance(length, torch.Tensor) else length
