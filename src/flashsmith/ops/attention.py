"""``attention``: the best kernel for a problem, on torch tensors."""

from __future__ import annotations

from typing import Any

import torch

from flashsmith.configs import AttentionKernelConfig
from flashsmith.mods.block_mask import BlockMask
from flashsmith.mods.trace import MaskMod, ScoreMod
from flashsmith.ops.checks import FP8, check_flags, needs_gradient, refuse_gradients
from flashsmith.ops.differentiable import call_differentiable
from flashsmith.ops.dropout import dropout_keywords
from flashsmith.ops.forward import run_attention
from flashsmith.ops.functions import traced_functions
from flashsmith.ops.gate import are_memory, refuse_unknown
from flashsmith.ops.operators import call_operator
from flashsmith.ops.outside_graphs import outside_of_graphs
from flashsmith.ops.spec import (
    CAUSAL,
    FULL,
    NO_WINDOW,
    OFF,
    AttentionSpec,
    given_tensors,
    make_spec,
    normal_window,
    tensors_of,
)
from flashsmith.reference.dropout import check_dropout

_LEARNED = ("q", "k", "v", "sinks", "bias")  # arguments with gradients


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    window_size: tuple[int, int] = NO_WINDOW,
    softcap: float = OFF,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    top_left: bool = False,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    block_mask: BlockMask | Any | None = None,
    dropout_p: float = OFF,
    rng_state: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    config: AttentionKernelConfig | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Computes softmax(q k^T * softmax_scale) v, with optional masks, score functions and lengths.

    Mind the layout: (batch, seq_len, n_heads, d_head). torch's scaled_dot_product_attention has
    (batch, n_heads, seq_len, d_head), which sizes alone cannot distinguish: pass ``q.transpose(1,
    2)``, a view that costs nothing.

    The diagonal of query i is key i + seq_len_k - seq_len_q, so that the last query has the last
    key; with ``top_left`` it is key i. A score goes through softmax_scale, softcap, alibi_slopes
    and bias, in this order. A query that sees no key gets zeros.

    The result is differentiable by q, k, v, sinks and bias, but only once. Gradients belong to what
    the forward computed: functions are traced once, in the forward, and torch refuses a backward if
    a tensor of the call was changed in place.

    CPU tensors run on the emulator. ``FLASHSMITH_LOG=1`` logs to stderr which kernel serves, and
    why, at its first use.

    Args:
        q: (batch, seq_len_q, n_heads, d_head), float16 or bfloat16, d_head a multiple of 8 up to
            256. The last dimension is contiguous, the other strides are multiples of 8 elements.
            With cu_seqlens_q: (total_q, n_heads, d_head), packed sequences. q may be float8_e4m3fn
            on compute capability 9.0: then d_head and strides are multiples of 16, the result is
            not differentiable, and bias, dropout_p, score_mod and mask_mod are not supported.
        k: (batch, seq_len_k, n_heads_kv, d_head), of q's dtype and device; n_heads is a multiple of
            n_heads_kv: neighbouring heads of q share a head of k and v. With cu_seqlens_k:
            (total_k, n_heads_kv, d_head).
        v: As k, with rows of d_v elements, which o has too: a multiple of 8 up to 256. With q of
            float8_e4m3fn, v has that dtype or 16 bits.
        causal: Whether queries see no keys ahead of their diagonal.
        softmax_scale: None: 1 / sqrt(d_head).
        window_size: (left, right): queries see keys from diagonal - left to diagonal + right; -1:
            all keys on that side.
        softcap: A score s becomes softcap * tanh(s / softcap); 0: unchanged.
        alibi_slopes: (n_heads,) or (batch, n_heads), float32: slope * |diagonal - key| is
            subtracted from a score.
        sinks: (n_heads,), float32 or q's dtype: an additional logit for each head, without a value.
        bias: (batch, n_heads, seq_len_q, seq_len_k), of q's dtype, each size may be 1: added to the
            scores; -inf hides a key. It excludes varlen batches. If scores are changed or there are
            sinks, a row whose log-sum-exp is beyond 2^20 has no gradient (float32 does not resolve
            its weights), and scores beyond 2.36e38 are clamped to that.
        top_left: Whether diagonals begin at the first key; see above.
        cu_seqlens_q, cu_seqlens_k: (batch + 1,), int32, on q's device: sequence i has the rows from
            offset i to before offset i + 1. Offsets are read on the device, so that a CUDA graph
            may replay with others.
        max_seqlen_q, max_seqlen_k: Upper bounds of the lengths; None: the total, or all rows.
        seqused_q, seqused_k: (batch,), int32: the number of rows in use of each sequence. Other
            rows of a new o are zero.
        score_mod: (score, b, h, q_idx, kv_idx) -> the score to use instead, before softcap. Indices
            count within a sequence. See docs/score-mod.md for what a function may do.
        mask_mod: (b, h, q_idx, kv_idx) -> whether the query sees the key.
        block_mask: A BlockMask of ``flashsmith.create_block_mask`` or torch, which gives the
            blocks, and the mask_mod unless that is given. It excludes varlen batches.
        dropout_p: The share of weights that are dropped, at random, from 0 to below 1; the others
            are multiplied by 1 / (1 - dropout_p). It is rounded to a multiple of 2^-15.
        rng_state: (2,), int64, on q's device: the seed and offset that select the dropped weights
            (``flashsmith.dropout_mask``); None: drawn from torch's generator of the device. They
            are read on the device, and not at all if dropout_p is 0.
        q_scale, k_scale, v_scale: (1,), (n_heads_kv,) or (batch, n_heads_kv), float32, positive:
            the scales of float8_e4m3fn q, k and v, read on the device; None: 1.
        out: The tensor for the result; None: a new contiguous tensor.
        config: The kernel to use; None: see ``select_config``.
        return_lse: Whether to also return the natural logarithm of the sum of each row's
            exponentials, its sink's included: (batch, n_heads, seq_len_q), float32, or (n_heads,
            total_q); -inf if a query sees nothing. It is differentiable, too.
        deterministic: Whether gradients have the same bits in every run, as under
            ``torch.use_deterministic_algorithms``. Results always have.

    Returns:
        (batch, seq_len_q, n_heads, d_v), or (total_q, n_heads, d_v), of v's dtype, or if that is
        FP8 of ``out``'s or bfloat16; with ``return_lse`` also the log-sum-exp.

    Raises:
        NotImplementedError: alibi_slopes, a scale, out or, with FP8 q, any tensor requires a
            gradient; a tensor has a tangent (forward-mode derivatives); or a second derivative is
            needed.
        TypeError, ValueError: No kernel supports an argument; the message names it, its value and
            what is supported.
        TracingError: score_mod or mask_mod does what no kernel can; the message names the line.
        KernelNotFoundError, ToolchainError, BuildError, CacheError: No kernel could be found or
            built.
        DeviceError: The GPU is too old, or refused the launch.
    """
    if not type(causal) is type(return_lse) is type(deterministic) is bool:
        check_flags(causal=causal, return_lse=return_lse, deterministic=deterministic)
    if (
        softmax_scale is None
        and alibi_slopes is sinks is bias is None
        and window_size is NO_WINDOW
        and softcap is dropout_p is OFF
        and cu_seqlens_q is cu_seqlens_k is seqused_q is seqused_k is None
        and max_seqlen_q is max_seqlen_k is None
        and top_left is False
        and score_mod is mask_mod is block_mask is rng_state is None
        and q_scale is k_scale is v_scale is None
    ):
        spec = CAUSAL if causal else FULL
        return attend(q, k, v, spec, out, config, return_lse, deterministic)
    spec = make_spec(
        causal, softmax_scale, normal_window(window_size), softcap, alibi_slopes, sinks, bias,
        top_left, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k,
        None, 0, None, None, 1, OFF, None, q_scale, k_scale, v_scale,
    )  # fmt: skip
    if dropout_p is not OFF or rng_state is not None:
        check_dropout(dropout_p)
        if dropout_p != 0 or rng_state is not None:
            spec = spec._replace(**dropout_keywords(q, dropout_p, rng_state))
    if score_mod is mask_mod is block_mask is None:
        return attend(q, k, v, spec, out, config, return_lse, deterministic)
    functions = score_mod, mask_mod, block_mask
    return _attend_with_functions(q, k, v, spec, functions, out, config, return_lse, deterministic)


@outside_of_graphs("flashsmith traces score_mod, mask_mod and block_mask itself, outside of graphs")
def _attend_with_functions(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    functions: tuple[Any, ...],
    *others: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Computes ``attend`` with functions, which are called here once and never again.

    functions: score_mod, mask_mod and block_mask.
    """
    refuse_unknown(q=q, k=k, v=v)
    traced = traced_functions(q, k, spec.cu_seqlens_q is not None, *functions)
    return attend(q, k, v, spec._replace(**traced), *others)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    out: torch.Tensor | None = None,
    config: AttentionKernelConfig | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Computes ``attention`` of a specification: launches now, or calls an operator that torch
    traces, depending on the tensors."""
    given = (q, k, v, *given_tensors(spec)) if out is None else (q, k, v, out, *given_tensors(spec))
    is_memory = are_memory(*given)
    if not is_memory:
        refuse_unknown(**_named(q, k, v, out, spec))
    if needs_gradient(*given):
        named = _named(q, k, v, out, spec)
        refuse_gradients(**{name: t for name, t in named.items() if name not in _LEARNED})
        if q.dtype == FP8:
            refuse_gradients(**named)
        if is_memory:
            return call_differentiable(q, k, v, spec, out, config, return_lse, deterministic)
    if is_memory:
        return run_attention(q, k, v, spec, out, config, return_lse)
    return call_operator(q, k, v, spec, out, config, return_lse, deterministic)


def _named(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor | None, spec: AttentionSpec
) -> dict[str, Any]:
    """Returns a call's tensors by the names of its arguments; captured tensors are a list."""
    given = {"q": q, "k": k, "v": v, **tensors_of(spec)}
    return given if out is None else given | {"out": out}
