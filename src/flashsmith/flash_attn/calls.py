"""From FlashAttention's arguments to those of ``flashsmith.attention``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flashsmith.flash_attn.probabilities import no_weights, signed_weights
from flashsmith.integrations.arguments import (
    check_dimensions,
    check_types,
    float32,
)
from flashsmith.integrations.heads import attend_any_head, readable
from flashsmith.integrations.pages import attend_pages_of_a_model
from flashsmith.ops.backward import run_backward
from flashsmith.ops.checks import check_flags
from flashsmith.ops.dropout import dropout_keywords
from flashsmith.ops.gate import explain
from flashsmith.ops.spec import AttentionSpec
from flashsmith.reference.dropout import check_dropout
from flashsmith.runtime import GradientTensors

Window = tuple[int, int]
Result = torch.Tensor | tuple[torch.Tensor, ...]


def call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float,
    deterministic: bool,
    return_attn_probs: bool,
    *,
    return_lse: bool,
    **keywords: Any,
) -> Result:
    """What a public function returns.

    Args:
        keywords: Those of ``forward``.
    """
    if not type(deterministic) is type(return_attn_probs) is type(return_lse) is bool:
        check_flags(
            deterministic=deterministic, return_attn_probs=return_attn_probs, return_lse=return_lse
        )
    keywords |= dropout(q, dropout_p)
    out, lse = forward(
        q, k, v, with_lse=return_lse or return_attn_probs, deterministic=deterministic, **keywords
    )
    if return_attn_probs:
        return out, lse, probabilities(q, k, **keywords)
    return (out, lse) if return_lse else out


def dropout(
    q: torch.Tensor, dropout_p: float, rng_state: torch.Tensor | None = None
) -> dict[str, Any]:
    """The keywords of dropout, with a new state where none is given; none where nothing drops."""
    if type(dropout_p) is float and dropout_p == 0.0:
        return {}
    return dropout_keywords(q, dropout_p, rng_state) if check_dropout(dropout_p) else {}


def probabilities(
    q: torch.Tensor, k: torch.Tensor, *, window_size: Window | torch.Tensor, **keywords: Any
) -> torch.Tensor:
    """S_dmask, which FlashAttention fills under dropout alone.

    Args:
        keywords: Others of ``forward``.
    """
    if "rng_state" not in keywords:
        return no_weights(q)
    softcap = max(keywords.pop("softcap"), 0.0)
    return signed_weights(q, k, window_size=sides(window_size), softcap=softcap, **keywords)


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    window_size: Window | torch.Tensor,
    softcap: float,
    with_lse: bool,
    sinks: torch.Tensor | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and the log-sum-exp; of the latter anything where it is not asked for.

    As FlashAttention does: a softcap below 0 is none, and a window's sides may still be in a
    tensor.
    """
    is_paged = "block_table" in keywords
    attend: Any = attend_pages_of_a_model if is_paged else attend_any_head
    try:
        if type(softcap) in (int, float) and softcap < 0:
            softcap = 0.0
        window_size = sides(window_size)
        sinks = float32("sinks", sinks)
        result = attend(
            q, k, v, window_size=window_size, softcap=softcap, sinks=sinks, return_lse=with_lse,
            **keywords,
        )  # fmt: skip
    except Exception:
        check_types(q=q, k=k, v=v)
        explain(q=q, k=k, v=v, sinks=sinks, **keywords)
        raise
    return result if isinstance(result, tuple) else (result, result)


def backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    into: Sequence[torch.Tensor | None],
    dropout_p: float,
    rng_state: torch.Tensor | None,
    deterministic: bool,
    *,
    causal: bool,
    softmax_scale: float | None,
    softcap: float,
    **keywords: Any,
) -> torch.Tensor:
    """Writes the gradients of ``forward`` into dq, dk and dv; returns the row sums of dout * out.

    Args:
        keywords: Others of ``forward``.
    """
    check_flags(deterministic=deterministic)
    check_types(dout=dout, q=q, k=k, v=v, out=out, softmax_lse=softmax_lse)
    if check_dropout(dropout_p):
        keywords |= {"dropout_p": dropout_p, "rng_state": rng_state}
    q, k, v, dout, out = map(readable, (q, k, v, dout.detach(), out.detach()))
    tensors = GradientTensors(q, k, v, out, softmax_lse.contiguous(), dout, *into)
    spec = AttentionSpec(causal, softmax_scale, softcap=max(softcap, 0.0), **keywords)
    run_backward(tensors, spec, deterministic=deterministic)
    return (dout.float() * out.float()).sum(-1).transpose(-1, -2)


def packing(
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int | torch.Tensor,
    max_seqlen_k: int | torch.Tensor,
) -> dict[str, Any]:
    """The keywords of packed sequences.

    As FlashAttention's operator, it takes a length that is still in a tensor.
    """
    return {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": _number(max_seqlen_q),
        "max_seqlen_k": _number(max_seqlen_k),
    }


def paging(block_table: torch.Tensor | None, splits: int = 0) -> dict[str, Any]:
    """The keywords of keys in pages; none where they are not."""
    return {} if block_table is None else {"block_table": block_table, "splits": splits}


def unpacked(
    name: str, t: torch.Tensor, before: Sequence[str], parts: int
) -> Sequence[torch.Tensor]:
    """q, k and v, or k and v, of a tensor that has them beside each other."""
    check_dimensions((*before, str(parts), "nheads", "headdim"), **{name: t})
    if t.shape[-3] != parts:
        raise ValueError(
            f"{name} has shape {tuple(t.shape)}; expected {parts} in dimension {t.ndim - 3}: "
            f"({', '.join(before)}, {parts}, nheads, headdim)"
        )
    return t.unbind(-3)


def sides(window_size: Window | torch.Tensor) -> Any:
    """A window's sides may still be in a tensor."""
    return tuple(window_size.tolist()) if isinstance(window_size, torch.Tensor) else window_size


def _number(length: int | torch.Tensor) -> Any:
    return length.item() if isinstance(length, torch.Tensor) else length
