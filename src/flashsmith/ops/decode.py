"""``decode``: attention of few queries a request over a KV cache, which may be paged."""

from __future__ import annotations

import torch

from flashsmith.configs import DecodeKernelConfig
from flashsmith.mods.trace import MaskMod, ScoreMod
from flashsmith.ops.checks import check_flags, needs_gradient
from flashsmith.ops.decode_call import DecodeCall, DecodeOptions
from flashsmith.ops.decode_calls import run, run_as_before
from flashsmith.ops.decode_checks import check_rows
from flashsmith.ops.decode_operator import call_decode_operator
from flashsmith.ops.functions import Functions
from flashsmith.ops.gate import are_memory, refuse_unknown
from flashsmith.ops.kv_cache import KVAppend, KVCache
from flashsmith.ops.outside_graphs import outside_of_graphs
from flashsmith.ops.spec import NO_WINDOW, in_float32


def decode(
    cfg: DecodeKernelConfig | None,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    cache_seqlens: torch.Tensor | int | None = None,
    block_table: torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    k_new: torch.Tensor | None = None,
    v_new: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    rotary_interleaved: bool = True,
    causal: bool = False,
    window_size: tuple[int, int] = NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    splits: int = 0,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
    benchmark: bool = False,
) -> torch.Tensor | tuple[torch.Tensor | float, ...]:
    """Computes softmax(q k^T * softmax_scale) v over each request's keys in a KV cache.

    Lengths, page tables and slots are read on the device: a CUDA graph of the call may replay with
    other numbers in these tensors. The same tensors give the same bits at every call on a GPU; with
    ``splits``, a request's result does not depend on other requests. CPU tensors run on the
    emulator. A kernel that no library holds is built first.

    Args:
        cfg: The kernel's configuration; None: it is chosen.
        q: (batch, seq_len_q, n_heads, d_head), float16 or bfloat16; with any number of queries, but
            the keys are read once for every 64 packed GQA rows (queries times heads that share a KV
            head).
        k_cache: (batch, rows, n_heads_kv, d_head); with ``cache_batch_idx`` (slots, rows, ...),
            with ``block_table`` (n_pages, page_size, ...), of any page_size. The last dimension is
            contiguous, the other strides are multiples of 16 bytes. The dtype is q's, or
            float8_e4m3fn, for which d_head and d_v are multiples of 16.
        v_cache: (..., n_heads_kv, d_v), as k_cache; its strides may differ.
        cache_seqlens: (batch,), int32, or one int for all: the number of rows of each request;
            None: all rows. Rows beyond are never read.
        block_table: (batch, pages), int32: the pages of each request. Entries beyond its rows may
            be anything.
        cache_batch_idx: (batch,), int32: each request's slot in the cache; None: request i has slot
            i.
        cache_leftpad: (batch,), int32: the number of rows before each request's first key.
        k_scale, v_scale: (1,), (n_heads_kv,) or (batch, n_heads_kv), float32, positive: the scales
            of float8_e4m3fn keys and values, read on the device; None: 1. Per-token scales have
            k_cache's first three dimensions and any strides, one scale for each head of each row,
            for v_scale up to 2^60; they are indexed as keys are, and must already hold the scales
            of k_new.
        k_new, v_new: (batch, n_new, n_heads_kv, d_head) and (..., d_v): written to the cache behind
            each request's ``cache_seqlens`` rows, and used by this call. The dtype is q's. A
            float8_e4m3fn cache gets x / scale, rounded to nearest even and clamped to +-448.
        rotary_cos, rotary_sin: (rows, rotary_dim / 2), of q's dtype, with at least as many rows as
            a request may have; rotary_dim is a multiple of 16. The first rotary_dim elements of
            each row of k_new are rotated before they are written, by the angles of their row in the
            cache. q is rotated too: query i by the angles of new key i if ``causal``, or if a side
            of ``window_size`` is at least 0 and below the rows of a request; else all queries by
            the angles of the first new key. None: no rotation.
        rotary_interleaved: Whether elements 2 i and 2 i + 1 form a pair; else i and i + rotary_dim
            / 2 do.
        causal: Whether query i sees keys only up to i + n_keys - seq_len_q.
        window_size, softcap, alibi_slopes, sinks, softmax_scale: See ``attention``.
        score_mod: (score, b, h, q_idx, kv_idx) -> the score to use instead, before softcap.
        mask_mod: (b, h, q_idx, kv_idx) -> whether the query sees the key, among those that the
            other arguments show. In both functions b is the request, h the head of q, and kv_idx
            counts from the request's first key, without padding and with new keys. Tensors that a
            function captures, of lengths for example, are read on the device. See docs/score-mod.md
            for what a function may do.
        splits: The number of splits of each request's keys, 1 to 1024; 0: as many as keep all SMs
            busy.
        out: The tensor for the result; None: a new contiguous tensor.
        return_lse: Whether to also return the natural logarithm of the sum of each row's
            exponentials, (batch, n_heads, seq_len_q), float32.
        benchmark: Whether to also return the milliseconds between two events around the launch.

    Returns:
        o, (batch, seq_len_q, n_heads, d_v); or the tuple of o, with ``return_lse`` lse, and with
        ``benchmark`` milliseconds. A query that sees no key gets zeros, and -inf as log-sum-exp.

    Raises:
        NotImplementedError: A tensor requires a gradient.
        TypeError: An argument has a wrong type, or a tensor a wrong dtype.
        TracingError: score_mod or mask_mod does what no kernel can; the message names the line.
        ValueError: The kernel does not support a shape, stride, alignment, device or length; page
            numbers and lengths are checked on a CPU, or with FLASHSMITH_CHECK_LENGTHS=1.
        KernelNotFoundError, ToolchainError, BuildError, CacheError: No kernel could be found or
            built.
        DeviceError: The kernel does not support the GPU, or the GPU refused the launch.
    """
    if not type(causal) is type(return_lse) is type(benchmark) is type(rotary_interleaved) is bool:
        check_flags(
            causal=causal, return_lse=return_lse, benchmark=benchmark,
            rotary_interleaved=rotary_interleaved,
        )  # fmt: skip
    sinks = in_float32(sinks)
    new = KVAppend.of(k_new, v_new, rotary_cos, rotary_sin, rotary_interleaved)
    cache = (
        k_cache, v_cache, cache_seqlens, block_table, cache_batch_idx, cache_leftpad,
        k_scale, v_scale,
    )  # fmt: skip
    options = causal, window_size, softcap, splits, softmax_scale
    if score_mod is mask_mod is None and not benchmark:
        others = alibi_slopes, sinks, 0, None
        found = run_as_before(cfg, q, out, return_lse, cache, options, others, new or ())
        if found is not None:
            o, lse, _ = found
            return o if lse is None else (o, lse)
    asked = DecodeOptions(cfg, *options)
    call = DecodeCall(q, KVCache(*cache), new, out, return_lse, alibi_slopes, sinks)
    if score_mod is mask_mod is None:
        o, lse, milliseconds = run_decode(asked, call, benchmark)
    else:
        o, lse, milliseconds = _run_with_functions(asked, call, benchmark, score_mod, mask_mod)
    if lse is None and not benchmark:
        return o
    return (o, *([] if lse is None else [lse]), *([milliseconds] if benchmark else []))


@outside_of_graphs("flashsmith traces score_mod and mask_mod itself, outside of graphs")
def _run_with_functions(
    asked: DecodeOptions,
    call: DecodeCall,
    benchmark: bool,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """Makes ``run_decode`` with functions, which are called here, once."""
    check_rows(call.q, call.cache)
    functions = Functions.traced(score_mod, mask_mod, call.q.device)
    return run_decode(asked, call._replace(functions=functions), benchmark)


def run_decode(
    asked: DecodeOptions, call: DecodeCall, benchmark: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """Returns o, lse and milliseconds of a call: launches now, or calls an operator that torch
    traces, depending on the tensors."""
    given = call.given
    if are_memory(*given):
        if needs_gradient(*given):
            call.refuse_gradients()
        return run(asked, call, benchmark)
    refuse_unknown(**call.named)
    return call_decode_operator(asked, call, benchmark)
