"""Packed queries over a paged KV cache."""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_compiling

from flashsmith.configs import ForwardKernelConfig
from flashsmith.integrations.arguments import check_dimensions
from flashsmith.integrations.heads import attend_any_head
from flashsmith.ops.checks import FP8, check_tensors, needs_gradient, refuse_gradients
from flashsmith.ops.decode import decode
from flashsmith.ops.dispatch import PagedWay, paged_way
from flashsmith.ops.forward import run_attention
from flashsmith.ops.kv_cache import KVCache, check_pages
from flashsmith.ops.layout import with_dense_rows
from flashsmith.ops.lengths import check_fp8_scales, check_lengths, check_longest, may_look_at
from flashsmith.ops.spec import AttentionSpec

_Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def attend_pages(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    block_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    max_seqlen_k: int | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    splits: int = 0,
    out: torch.Tensor | None = None,
    config: ForwardKernelConfig | None = None,
    return_lse: bool = False,
    dropout_p: float = 0.0,
    rng_state: torch.Tensor | None = None,
    deterministic: bool = False,
    **semantics: Any,
) -> _Result:
    """Computes ``attention`` of packed queries over pages; the result is not differentiable.

    If no request has many queries, ``decode`` reads the pages. Otherwise the forward's kernels read
    them if they can and a copy would take longer: on compute capability 9.0 and the emulator, with
    pages of a multiple of 16 rows. Otherwise pages are copied, for each request as many as the
    longest has: 2 * batch * max_seqlen_k rows, rounded up to pages; FP8 pages are converted to q's
    dtype. Lengths, the page table and scales are always read on the device, so that a CUDA graph
    may replay with others; page numbers outside the cache are never followed.

    Args:
        q: (total_q, n_heads, d_head).
        k, v: (n_pages, page_size, n_heads_kv, d_head), with any strides, of q's dtype or both
            float8_e4m3fn.
        block_table: int32 (batch, pages): the pages of each request; entries beyond its keys may be
            anything.
        cu_seqlens_q: int32 (batch + 1,): the offsets of requests in q.
        cu_seqlens_k: int32 (batch + 1,): request b has cu_seqlens_k[b + 1] - cu_seqlens_k[b] keys;
            these are not offsets into k.
        seqused_k: int32 (batch,): the number of keys of each request, in place of cu_seqlens_k.
        max_seqlen_q, max_seqlen_k: Upper bounds for every request.
        k_scale, v_scale: The scales of float8_e4m3fn keys and values; see ``decode``.
        splits: See ``decode``.
        semantics: softmax_scale, causal, window_size, softcap, alibi_slopes and sinks; see
            ``attention``.

    Raises:
        NotImplementedError: A tensor requires a gradient, or dropout_p is not 0.
        TypeError, ValueError: See ``attention`` and ``decode``; page numbers and lengths are
            checked on a CPU, or with FLASHSMITH_CHECK_LENGTHS=1.
    """
    if dropout_p:
        raise NotImplementedError(
            f"dropout_p is {dropout_p} with block_table; pages are for inference: pass 0.0"
        )
    if torch.is_grad_enabled():
        refuse_gradients(q=q, k=k, v=v, sinks=semantics.get("sinks"))
    check_longest(max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
    cache = _checked(q, k, v, block_table, cu_seqlens_q, cu_seqlens_k, seqused_k)
    cache = _with_scales(q, cache, k_scale, v_scale)
    assert cu_seqlens_q is not None
    if may_look_at(q):
        check_lengths("q", 1, q.shape[0], cu_seqlens_q, None, max_seqlen_q)
        name = "cu_seqlens_k" if seqused_k is None else "seqused_k"
        _look(name, cache, max_seqlen_k)
    q = with_dense_rows(q)
    way = paged_way(q, cache, max_seqlen_q, config, semantics.get("causal", False))
    if way is PagedWay.SPLIT_KV:
        assert max_seqlen_q is not None
        return _decoded(q, cache, cu_seqlens_q, max_seqlen_q, splits, out, return_lse, semantics)
    if way is PagedWay.IN_PLACE:
        spec = AttentionSpec(
            **semantics, block_table=cache.block_table, cu_seqlens_q=cu_seqlens_q,
            max_seqlen_q=max_seqlen_q, seqused_k=cache.seqlens, max_seqlen_k=max_seqlen_k,
        )  # fmt: skip
        return run_attention(q, cache.k, cache.v, spec, out, config, return_lse)
    k, v = cache.gathered(max_seqlen_k, q.dtype)
    return attend_any_head(
        q, k, v, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, seqused_k=cache.seqlens,
        out=out, config=config, return_lse=return_lse, **semantics,
    )  # fmt: skip


class _WithoutGradient(torch.autograd.Function):
    """Returns o as a result of tensors that require a gradient, but refuses to compute one."""

    @staticmethod
    def forward(ctx: Any, o: torch.Tensor, *given: torch.Tensor | None) -> torch.Tensor:
        return o.view_as(o)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        raise NotImplementedError(
            "block_table was given; gradients of attention over pages are not computed"
        )


def attend_pages_of_a_model(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **keywords: Any
) -> _Result:
    """Computes ``attend_pages`` for a model that may call it outside of ``torch.no_grad()``: as in
    FlashAttention, the backward through the result is refused, not the call."""
    given = q, k, v, keywords.get("sinks")
    if is_compiling() or keywords.get("out") is not None or not needs_gradient(*given):
        return attend_pages(q, k, v, **keywords)
    with torch.no_grad():
        result = attend_pages(q, k, v, **keywords)
    o, *lse = result if isinstance(result, tuple) else (result,)
    o = _WithoutGradient.apply(o, *given)  # type: ignore[no-untyped-call]
    return (o, lse[0]) if lse else o


def _checked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    seqused_k: torch.Tensor | None,
) -> KVCache:
    check_dimensions(("total_q", "n_heads", "d_head"), q=q)
    check_dimensions(("n_pages", "page_size", "n_heads_kv", "d_head"), k=k, v=v)
    check_dimensions(("batch", "pages"), block_table=block_table)
    if k.shape[:3] != v.shape[:3] or not k.shape[0] or not k.shape[1]:
        raise ValueError(
            f"k has shape {tuple(k.shape)} and v {tuple(v.shape)}; expected (n_pages, page_size, "
            "n_heads_kv, ...) of both, of at least a page of a row"
        )
    block_table = with_dense_rows(block_table)
    batch = block_table.shape[0]
    _check_numbers(q, cu_seqlens_q=cu_seqlens_q, block_table=block_table)
    assert cu_seqlens_q is not None
    _check_size("cu_seqlens_q", cu_seqlens_q, batch + 1)
    if seqused_k is None:
        _check_numbers(q, cu_seqlens_k=cu_seqlens_k)
        assert cu_seqlens_k is not None
        _check_size("cu_seqlens_k", cu_seqlens_k, batch + 1)
        return KVCache(k, v, cu_seqlens_k.diff(), block_table)
    _check_numbers(q, seqused_k=seqused_k)
    _check_size("seqused_k", seqused_k, batch)
    return KVCache(k, v, seqused_k, block_table)


def _with_scales(
    q: torch.Tensor, cache: KVCache, k_scale: torch.Tensor | None, v_scale: torch.Tensor | None
) -> KVCache:
    k, v = cache.k, cache.v
    if k.dtype != v.dtype and FP8 in (k.dtype, v.dtype):
        raise TypeError(f"k has dtype {k.dtype} and v {v.dtype}; they need the same")
    assert cache.block_table is not None
    batch, heads_kv = cache.block_table.shape[0], k.shape[2]
    shapes = [(1,), (heads_kv,), (batch, heads_kv), tuple(k.shape[:3])]
    check_fp8_scales(k_scale=k_scale, v_scale=v_scale)
    for name, t in (("k_scale", k_scale), ("v_scale", v_scale)):
        if t is None:
            continue
        if not cache.is_fp8:
            raise ValueError(f"{name} was passed, but k has dtype {k.dtype}; pass None")
        if tuple(t.shape) not in shapes or t.device != q.device:
            raise ValueError(
                f"{name} has shape {tuple(t.shape)} on {t.device}; expected one of {shapes} on "
                f"{q.device}: for all, by head of k, by request and head, or by row and head"
            )
    return cache._replace(k_scale=k_scale, v_scale=v_scale)


def _check_numbers(q: torch.Tensor, **tensors: torch.Tensor | None) -> None:
    for name, t in tensors.items():
        if not isinstance(t, torch.Tensor) or t.dtype != torch.int32 or t.device != q.device:
            found = f"{t.dtype} on {t.device}" if isinstance(t, torch.Tensor) else type(t).__name__
            raise TypeError(f"{name} is {found}; block_table needs torch.int32 on {q.device}")


def _check_size(name: str, t: torch.Tensor, size: int) -> None:
    if t.shape != (size,):
        raise ValueError(
            f"{name} has shape {tuple(t.shape)}; expected ({size},), by the rows of block_table"
        )


def _look(name: str, cache: KVCache, max_seqlen_k: int | None) -> None:
    """Raises ValueError for lengths and page numbers that kernels would clamp."""
    assert cache.block_table is not None
    rows, lengths = cache.rows, cache.seqlens.tolist()
    for request, length in enumerate(lengths):
        if not 0 <= length <= rows:
            raise ValueError(
                f"{name} has {length} keys for request {request}; expected 0 to {rows}, the rows "
                "of its pages in block_table"
            )
    check_lengths("k", len(lengths), rows, None, cache.seqlens, max_seqlen_k)
    check_pages("k", cache.k, cache.block_table, [(0, length) for length in lengths])


def _decoded(
    q: torch.Tensor,
    cache: KVCache,
    cu_seqlens_q: torch.Tensor,
    n: int,
    splits: int,
    out: torch.Tensor | None,
    return_lse: bool,
    semantics: dict[str, Any],
) -> _Result:
    """Computes the queries by ``decode``, which needs equal numbers of queries: each request's last
    ``n`` rows. The diagonals of the request's own queries are right, whatever rows precede them."""
    batch, ends = cu_seqlens_q.numel() - 1, cu_seqlens_q[1:]
    rows = ends[:, None] + torch.arange(-n, 0, dtype=torch.int32, device=q.device)
    last = q.index_select(0, rows.clamp(0, q.shape[0] - 1).flatten())
    found: Any = decode(
        None, last.view(batch, n, *q.shape[1:]), cache.k, cache.v, cache_seqlens=cache.seqlens,
        block_table=cache.block_table, k_scale=cache.k_scale, v_scale=cache.v_scale, splits=splits,
        return_lse=return_lse, **semantics,
    )  # fmt: skip
    o, lse = found if return_lse else (found, None)
    row = torch.arange(q.shape[0], dtype=torch.int32, device=q.device)
    request = torch.searchsorted(ends, row, right=True, out_int32=True).clamp_(max=batch - 1)
    place = request * n + (row - ends.index_select(0, request) + n).clamp_(0, n - 1)
    o = o.flatten(0, 1).index_select(0, place)
    if out is not None:
        _check_out(out, o)
        is_own = (row >= cu_seqlens_q[0]) & (row < cu_seqlens_q[-1])
        o = out.copy_(torch.where(is_own[:, None, None], o, out))
    return o if lse is None else (o, lse.transpose(0, 1).flatten(1).index_select(1, place))


def _check_out(out: torch.Tensor, o: torch.Tensor) -> None:
    check_tensors(out=out)
    if out.shape != o.shape or out.dtype != o.dtype or out.device != o.device:
        raise ValueError(
            f"out has shape {tuple(out.shape)}, {out.dtype}, on {out.device}; expected "
            f"{tuple(o.shape)}, {o.dtype}, on {o.device}"
        )
