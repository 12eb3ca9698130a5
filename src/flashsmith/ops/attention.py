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

_LEARNED = ("q", "k", "v", "sinks", "bias")  # arguments that have gradients


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
    """softmax(q k^T * softmax_scale) v, with masks, scores and lengths as asked for.

    Mind the layout: (batch, seq_len, n_heads, d_head). torch's scaled_dot_product_attention has
    (batch, n_heads, seq_len, d_head), which is not told apart by its sizes: pass
    ``q.transpose(1, 2)``, a view that costs nothing.

    The diagonal of query i is key i + seq_len_k - seq_len_q, so that the last query and the last
    key are side by side; with ``top_left`` it is key i. A score goes through softmax_scale,
    softcap, alibi_slopes and bias, in this order. A query that sees no key gets zeros.

    Differentiable by q, k, v, sinks and bias; not twice. Gradients are those of what the forward
    saw: functions are traced once, in the forward, and torch refuses a backward after a tensor of
    the call was changed in place.

    CPU tensors run on the emulator. ``FLASHSMITH_LOG=1`` says on stderr which kernel serves, and
    why, when it is first used.

    Args:
        q: (batch, seq_len_q, n_heads, d_head), float16 or bfloat16, d_head a multiple of 8 up to
            256. The last dimension is contiguous, the other strides are multiples of 8 elements.
            With cu_seqlens_q: (total_q, n_heads, d_head), the sequences one after the other. Or
            float8_e4m3fn, on compute capability 9.0 alone: d_head and strides are multiples of 16
            then; not differentiable, and without bias, dropout_p, score_mod and mask_mod.
        k: (batch, seq_len_k, n_heads_kv, d_head), of q's dtype and device; n_heads is a multiple of
            n_heads_kv: neighbouring heads of q share one of k and v. With cu_seqlens_k: (total_k,
            n_heads_kv, d_head).
        v: As k, with rows of d_v elements, which are o's: a multiple of 8 up to 256. Beside a q of
            float8_e4m3fn: of that dtype, too, or of 16 bits.
        causal: Queries see no keys ahead of their diagonal.
        softmax_scale: None: 1 / sqrt(d_head).
        window_size: (left, right): queries see keys from diagonal - left to diagonal + right; -1 is
            all of that side.
        softcap: A score s becomes softcap * tanh(s / softcap); 0: it stays.
        alibi_slopes: (n_heads,) or (batch, n_heads), float32: a score loses
            slope * |diagonal - key|.
        sinks: (n_heads,), float32 or q's dtype: one more logit a head, without a value.
        bias: (batch, n_heads, seq_len_q, seq_len_k), of q's dtype, where a size may be 1: added to
            the scores; -inf hides a key. Not with lengths of their own. Where scores are changed or
            there are sinks, a row whose log-sum-exp is beyond 2^20 has no gradient (its float32
            does not tell the weights), and scores beyond 2.36e38 count as that.
        top_left: See above.
        cu_seqlens_q, cu_seqlens_k: (batch + 1,), int32, on q's device: sequence i has the rows from
            place i to before place i + 1. They are read on the device, so that a CUDA graph replays
            with others.
        max_seqlen_q, max_seqlen_k: No sequence is longer; None: the total, or all rows.
        seqused_q, seqused_k: (batch,), int32: so many rows of each sequence are used. Rows of a new
            o that are not are zero.
        score_mod: (score, b, h, q_idx, kv_idx) -> the score to use instead, before softcap. Indices
            are those within a sequence. See docs/score-mod.md for what a function may do.
        mask_mod: (b, h, q_idx, kv_idx) -> whether the query sees the key.
        block_mask: ``flashsmith.create_block_mask``'s, or torch's BlockMask: its blocks, and its
            mask_mod unless one is given. Not with lengths of their own.
        dropout_p: The share of weights that are dropped, at random, from 0 to below 1; the others
            are multiplied with 1 / (1 - dropout_p). Rounded to a multiple of 2^-15.
        rng_state: (2,), int64, on q's device: a seed and an offset, which say which weights are
            dropped (``flashsmith.dropout_mask``); None: drawn from torch's generator of the device.
            They are read on the device, and not at all where dropout_p is 0.
        q_scale, k_scale, v_scale: (1,), (n_heads_kv,) or (batch, n_heads_kv), float32, positive:
            what q, k and v of float8_e4m3fn are multiplied with, read on the device; None: 1.
        out: Where to write the result; None: a new contiguous tensor.
        config: The kernel to use; None: see ``select_config``.
        return_lse: Also return the natural logarithm of the sum of each row's exponentials, its
            sink's included: (batch, n_heads, seq_len_q), float32, or (n_heads, total_q); -inf where
            a query sees nothing. It is differentiable, too.
        deterministic: Gradients have the same bits at every run, as they have under
            ``torch.use_deterministic_algorithms``. Results always have.

    Returns:
        (batch, seq_len_q, n_heads, d_v), or (total_q, n_heads, d_v), of v's dtype, where that has
        8 bits of ``out``'s or bfloat16; with ``return_lse`` also the log-sum-exp.

    Raises:
        NotImplementedError: alibi_slopes, a scale, out or, beside a q of 8 bits, any tensor
            requires a gradient; a tensor has a tangent (forward-mode derivatives); or a second
            derivative is asked for.
        TypeError, ValueError: An argument that no kernel takes; names it, what came and what is
            supported.
        TracingError: score_mod or mask_mod does what no kernel can; names the line.
        KernelNotFoundError, ToolchainError, BuildError, CacheError: No kernel could be had.
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
    """``attend``, of functions that are called here once and never again.

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
    """``attention`` of a specification: launches now, or has torch see an operator, as the tensors
    are."""
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
    """Returns a call's tensors by the names of its arguments; captured ones are a list."""
    given = {"q": q, "k": k, "v": v, **tensors_of(spec)}
    return given if out is None else given | {"out": out}
