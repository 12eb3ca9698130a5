"""FlashAttention's private functions that other projects import, ring attention for example."""

from __future__ import annotations

import math

import torch

from flashsmith.flash_attn.calls import (
    backward,
    forward,
    probabilities,
    specification,
    with_dropout,
)
from flashsmith.flash_attn.probabilities import no_weights
from flashsmith.ops.checks import check_flags
from flashsmith.ops.spec import OFF, AttentionSpec

_Forward = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _flash_attn_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    return_softmax: bool,
) -> _Forward:
    """Returns (out, softmax_lse, S_dmask, rng_state).

    Without dropout, S_dmask is empty and rng_state is uninitialised; without ``return_softmax``,
    S_dmask is empty too.
    """
    spec = specification(
        causal=causal, softmax_scale=softmax_scale, softcap=softcap,
        window_size=(window_size_left, window_size_right), alibi_slopes=alibi_slopes,
    )  # fmt: skip
    return _forward(q, k, v, spec, dropout_p, return_softmax)


def _forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    dropout_p: float,
    return_softmax: bool,
    splits: int = 0,
) -> _Forward:
    spec = with_dropout(spec, q, dropout_p)
    out, lse = forward(q, k, v, spec, with_lse=True, splits=splits)
    S_dmask = probabilities(q, k, spec) if return_softmax else no_weights(q)
    state = spec.rng_state
    return out, lse, S_dmask, q.new_empty(2, dtype=torch.int64) if state is None else state


def _flash_attn_varlen_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = OFF,
    alibi_slopes: torch.Tensor | None = None,
    return_softmax: bool = False,
    block_table: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    zero_tensors: bool = False,
    num_splits: int = 0,
) -> _Forward:
    """Computes ``_flash_attn_forward`` of packed sequences.

    With ``block_table``, k and v are pages, and ``seqused_k`` or cu_seqlens_k says how many keys
    each sequence has.

    Args:
        zero_tensors: Whether rows outside all sequences are set to 0 in out, -inf in softmax_lse
            and 0 in S_dmask; else these rows of out and softmax_lse are undefined.
    """
    if leftpad_k is not None:
        raise NotImplementedError("leftpad_k is given; only None is supported yet")
    if num_splits not in (0, 1):
        raise NotImplementedError(f"num_splits is {num_splits}; only 0 and 1 are supported yet")
    check_flags(zero_tensors=zero_tensors)
    spec = specification(
        causal=causal, softmax_scale=softmax_scale, softcap=softcap,
        window_size=(window_size_left, window_size_right), alibi_slopes=alibi_slopes,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k, seqused_k=seqused_k, block_table=block_table,
    )  # fmt: skip
    out, lse, S_dmask, rng_state = _forward(q, k, v, spec, dropout_p, return_softmax, num_splits)
    if zero_tensors:
        row = torch.arange(q.shape[0], device=q.device)
        of_none = (row < cu_seqlens_q[0]) | (row >= cu_seqlens_q[-1])
        out, lse = out.masked_fill(of_none[:, None, None], 0), lse.masked_fill(of_none, -math.inf)
    return out, lse, S_dmask, rng_state


def _flash_attn_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    dq: torch.Tensor | None,
    dk: torch.Tensor | None,
    dv: torch.Tensor | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    deterministic: bool,
    rng_state: torch.Tensor | None = None,
) -> torch.Tensor:
    """Writes the gradients into dq, dk and dv.

    ``out`` and ``softmax_lse`` may be the combined result of several calls over parts of the keys:
    dq is then the contribution of this call's keys to the gradient. ``rng_state`` is the forward's.

    Returns:
        softmax_d, the row sums of dout * out: float32 (batch, nheads, seqlen_q); seqlen_q is not
        rounded up.
    """
    spec = specification(
        causal=causal, softmax_scale=softmax_scale, softcap=softcap,
        window_size=(window_size_left, window_size_right), alibi_slopes=alibi_slopes,
    )  # fmt: skip
    return backward(
        dout, q, k, v, out, softmax_lse, (dq, dk, dv), spec,
        dropout_p=dropout_p, rng_state=rng_state, deterministic=deterministic,
    )  # fmt: skip


def _flash_attn_varlen_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    dq: torch.Tensor | None,
    dk: torch.Tensor | None,
    dv: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    deterministic: bool,
    rng_state: torch.Tensor | None = None,
    zero_tensors: bool = False,
) -> torch.Tensor:
    """Computes ``_flash_attn_backward`` of packed sequences.

    Args:
        zero_tensors: Whether rows of dq, dk and dv outside all sequences are set to 0; else they
            are unchanged.

    Returns:
        softmax_d, float32 (nheads, total_q).
    """
    check_flags(zero_tensors=zero_tensors)
    given = (dq, dk, dv)
    if zero_tensors:
        for t in given:
            if t is not None:
                t.zero_()
    spec = specification(
        causal=causal, softmax_scale=softmax_scale, softcap=softcap,
        window_size=(window_size_left, window_size_right), alibi_slopes=alibi_slopes,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
    )  # fmt: skip
    return backward(
        dout, q, k, v, out, softmax_lse, given, spec,
        dropout_p=dropout_p, rng_state=rng_state, deterministic=deterministic,
    )  # fmt: skip
