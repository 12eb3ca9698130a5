"""Packed queries over keys and values that lie in pages of a cache."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

import torch
from torch.compiler import is_compiling

from flashsmith.configs import ForwardKernelConfig, Variant
from flashsmith.configs.variant import PAGED
from flashsmith.integrations.arguments import check_dimensions
from flashsmith.integrations.heads import attend_any_head
from flashsmith.integrations.paged_keys import Pages
from flashsmith.ops.cache import check_pages
from flashsmith.ops.checks import FP8, check_tensors, needs_gradient, refuse_gradients
from flashsmith.ops.decode import decode
from flashsmith.ops.forward import run_attention
from flashsmith.ops.gate import are_memory
from flashsmith.ops.layout import with_dense_rows
from flashsmith.ops.lengths import check_fp8_scales, check_lengths, check_longest, may_look_at
from flashsmith.ops.many_queries import FEWEST_ROWS, chosen_for, is_forward_faster
from flashsmith.ops.spec import AttentionSpec
from flashsmith.selection.select import reads_pages

# Of queries and the heads that share keys. ``decode`` reads keys from memory once, and from L2 for
# every 64 rows more; copied keys pass through memory three times, but the forward computes faster.
# Where nothing is copied its model decides from 65 rows on.
_MOST_ROWS_TO_DECODE = 256
# Of rows that a copy brings, which a page and a tile share: queries and the heads that share keys,
# up to which pages are read where they lie. More copies of fewer rows keep the multiprocessors
# waiting; for more queries it is worth while to copy the pages first. Measured on an H200.
_MOST_ROWS_IN_PLACE = {16: 512, 32: 768, 64: 1024, 128: 4096}

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
    """``attention`` of packed queries over pages. Not differentiable.

    Where no request has many queries, ``decode`` reads the pages. Otherwise kernels of the forward
    do, where there are such and a copy would take longer: on compute capability 9.0, and the
    emulator, of pages of a multiple of 16 rows. Else those that the table lists for the longest
    request are copied, for all: 2 * batch * max_seqlen_k rows, rounded up to pages; so are those of
    8 bits, which become numbers of q's dtype. Lengths, pages and scales are read on the device in
    all cases, so that a CUDA graph replays with others; pages outside of the cache are never
    followed.

    Args:
        q: (total_q, n_heads, d_head).
        k, v: (n_pages, page_size, n_heads_kv, d_head), with any strides, of q's dtype or both
            float8_e4m3fn.
        block_table: int32 (batch, pages): the pages of each request; beyond its keys anything.
        cu_seqlens_q: int32 (batch + 1,).
        cu_seqlens_k: int32 (batch + 1,): request b has as many keys as element b is less than the
            next; they say nothing of where keys lie.
        seqused_k: int32 (batch,): how many keys each request has, in place of cu_seqlens_k.
        max_seqlen_q, max_seqlen_k: No request has more.
        k_scale, v_scale: Of ``decode``: what keys and values of float8_e4m3fn are multiplied with.
        splits: Of ``decode``.
        semantics: softmax_scale, causal, window_size, softcap, alibi_slopes and sinks of
            ``attention``.

    Raises:
        NotImplementedError: A tensor requires a gradient, or dropout is asked for.
        TypeError, ValueError: As ``attention`` and ``decode``; page numbers and lengths are looked
            at on a CPU, or with FLASHSMITH_CHECK_LENGTHS=1.
    """
    if dropout_p:
        raise NotImplementedError(
            f"dropout_p is {dropout_p} with block_table; pages are for inference: pass 0.0"
        )
    if torch.is_grad_enabled():
        refuse_gradients(q=q, k=k, v=v, sinks=semantics.get("sinks"))
    check_longest(max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
    pages = _checked(q, k, v, block_table, cu_seqlens_q, cu_seqlens_k, seqused_k)
    pages = _with_scales(q, pages, k_scale, v_scale)
    assert cu_seqlens_q is not None
    if may_look_at(q):
        check_lengths("q", 1, q.shape[0], cu_seqlens_q, None, max_seqlen_q)
        name = "cu_seqlens_k" if seqused_k is None else "seqused_k"
        _look(name, pages, max_seqlen_k)
    q = with_dense_rows(q)
    if config is None and _are_few(q, pages, max_seqlen_q, semantics.get("causal", False)):
        assert max_seqlen_q is not None
        return _decoded(q, pages, cu_seqlens_q, max_seqlen_q, splits, out, return_lse, semantics)
    is_memory = are_memory(q, pages.k, pages.v)
    if is_memory and _are_read_in_place(q, pages, max_seqlen_q, config, semantics):
        spec = AttentionSpec(
            **semantics, block_table=pages.table, cu_seqlens_q=cu_seqlens_q,
            max_seqlen_q=max_seqlen_q, seqused_k=pages.lengths, max_seqlen_k=max_seqlen_k,
        )  # fmt: skip
        return run_attention(q, pages.k, pages.v, spec, out, config, return_lse)
    k, v = pages.gathered(max_seqlen_k, q.dtype)
    return attend_any_head(
        q, k, v, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, seqused_k=pages.lengths,
        out=out, config=config, return_lse=return_lse, **semantics,
    )  # fmt: skip


class _WithoutGradient(torch.autograd.Function):
    """o as a result of tensors that require a gradient, of which none is computed."""

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
    """``attend_pages``, which a model may also call outside of ``torch.no_grad()``: a backward
    through the result is refused, not the call, as FlashAttention does."""
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
) -> Pages:
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
        return Pages(k, v, block_table, cu_seqlens_k.diff())
    _check_numbers(q, seqused_k=seqused_k)
    _check_size("seqused_k", seqused_k, batch)
    return Pages(k, v, block_table, seqused_k)


def _with_scales(
    q: torch.Tensor, pages: Pages, k_scale: torch.Tensor | None, v_scale: torch.Tensor | None
) -> Pages:
    k, v = pages.k, pages.v
    if k.dtype != v.dtype and FP8 in (k.dtype, v.dtype):
        raise TypeError(f"k has dtype {k.dtype} and v {v.dtype}; they need the same")
    heads_kv = k.shape[2]
    shapes = [(1,), (heads_kv,), (len(pages.table), heads_kv), tuple(k.shape[:3])]
    check_fp8_scales(k_scale=k_scale, v_scale=v_scale)
    for name, t in (("k_scale", k_scale), ("v_scale", v_scale)):
        if t is None:
            continue
        if not pages.are_fp8:
            raise ValueError(f"{name} was passed, but k has dtype {k.dtype}; pass None")
        if tuple(t.shape) not in shapes or t.device != q.device:
            raise ValueError(
                f"{name} has shape {tuple(t.shape)} on {t.device}; expected one of {shapes} on "
                f"{q.device}: for all, by head of k, by request and head, or by row and head"
            )
    return pages._replace(k_scale=k_scale, v_scale=v_scale)


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


def _look(name: str, pages: Pages, max_seqlen_k: int | None) -> None:
    """Raises ValueError for lengths and pages that would be cut off."""
    rows = pages.table.shape[1] * pages.k.shape[1]
    lengths = pages.lengths.tolist()
    for request, length in enumerate(lengths):
        if not 0 <= length <= rows:
            raise ValueError(
                f"{name} has {length} keys for request {request}; expected 0 to {rows}, the rows "
                "of its pages in block_table"
            )
    check_lengths("k", len(lengths), rows, None, pages.lengths, max_seqlen_k)
    check_pages("k", pages.k, pages.table, [(0, length) for length in lengths])


def _are_few(q: torch.Tensor, pages: Pages, max_seqlen_q: int | None, causal: bool) -> bool:
    """Whether ``decode`` is for them; all that decides is known on the host, but to what is traced,
    which cannot ask where in its memory a tensor begins."""
    if is_compiling() or not max_seqlen_q or not q.numel() or not pages.table.numel():
        return False
    d_head = q.shape[-1]
    rows = _rows_of_head(q, pages, max_seqlen_q)
    if rows > _MOST_ROWS_TO_DECODE or not pages.are_dense(d_head):
        return False
    in_place = pages.are_in_order(d_head) and reads_pages(q.device)
    if rows <= FEWEST_ROWS or q.is_cpu or not in_place:
        return True
    return not is_forward_faster(
        *_sizes(q, pages, max_seqlen_q), Variant(causal=causal, ragged=True), q.device
    )


def are_read_in_place(device: torch.device, page_size: int) -> bool:
    """Whether kernels of the forward read pages of a usual layout where they lie, however many
    queries there are."""
    return page_size % max(_MOST_ROWS_IN_PLACE) == 0 and reads_pages(device)


def _are_read_in_place(
    q: torch.Tensor,
    pages: Pages,
    max_seqlen_q: int | None,
    config: ForwardKernelConfig | None,
    semantics: dict[str, Any],
) -> bool:
    """Whether kernels of the forward read these, and lose no more by it than a copy takes."""
    if not pages.are_in_order(q.shape[-1]):
        return False
    if config is not None:  # the caller's wish
        return isinstance(config, ForwardKernelConfig) and config.serves_variant(PAGED)
    if q.is_cpu or not reads_pages(q.device):  # on the emulator no time counts
        return reads_pages(q.device)
    most = q.shape[0] if max_seqlen_q is None else max_seqlen_q
    variant = replace(PAGED, causal=semantics.get("causal", False))
    chosen = chosen_for(*_sizes(q, pages, most), variant, q.device)
    together = gcd(pages.k.shape[1], chosen.B_c)
    limit = max(rows for fewest, rows in _MOST_ROWS_IN_PLACE.items() if fewest <= together)
    return _rows_of_head(q, pages, most) <= limit


def _rows_of_head(q: torch.Tensor, pages: Pages, max_seqlen_q: int) -> int:
    """Queries of a request times the heads that share one of its keys."""
    return max_seqlen_q * (q.shape[1] // max(pages.k.shape[2], 1))


def _sizes(q: torch.Tensor, pages: Pages, max_seqlen_q: int) -> tuple[Any, ...]:
    """As ``chosen_for`` takes them, of requests that all have as many rows as they may."""
    batch, n_listed = pages.table.shape
    k_shape = (batch, n_listed * pages.k.shape[1], *pages.k.shape[2:])
    return q.dtype, (batch, max_seqlen_q, *q.shape[1:]), k_shape, pages.v.shape[-1]


def _decoded(
    q: torch.Tensor,
    pages: Pages,
    cu_seqlens_q: torch.Tensor,
    n: int,
    splits: int,
    out: torch.Tensor | None,
    return_lse: bool,
    semantics: dict[str, Any],
) -> _Result:
    """``decode`` has equal numbers of queries: each request's last ``n`` rows, whose diagonals are
    right for all that are its own, whatever stands before them."""
    batch, ends = cu_seqlens_q.numel() - 1, cu_seqlens_q[1:]
    rows = ends[:, None] + torch.arange(-n, 0, dtype=torch.int32, device=q.device)
    last = q.index_select(0, rows.clamp(0, q.shape[0] - 1).flatten())
    found: Any = decode(
        None, last.view(batch, n, *q.shape[1:]), pages.k, pages.v, cache_seqlens=pages.lengths,
        block_table=pages.table, k_scale=pages.k_scale, v_scale=pages.v_scale, splits=splits,
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
