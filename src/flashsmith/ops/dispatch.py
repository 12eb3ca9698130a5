"""Chooses the kernels of a call over a KV cache: decode's, which split keys among all SMs
(split-KV), or the forward's, on keys in place or on copies.

``attention`` without a cache asks ``selection`` alone, whose cost model
(``configs/few_queries.py``) decides here, too, if both could serve.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from enum import Enum
from math import gcd
from typing import Any

import torch
from torch.compiler import is_compiling

from flashsmith.configs import (
    AttentionKernelConfig,
    DecodeKernelConfig,
    ForwardKernelConfig,
    Variant,
    Workload,
)
from flashsmith.configs.variant import PAGE_ROWS, PAGED
from flashsmith.ops.gate import are_memory
from flashsmith.ops.kv_cache import KVCache
from flashsmith.problem import Problem
from flashsmith.selection.choose import forget_with_tables
from flashsmith.selection.select import dtype_of, reads_pages, select_for

# Rows below are packed GQA rows: the queries of a request times the heads that share a KV head.

# From more rows on the forward may be faster, so the cost model is asked; time does not count on
# the emulator.
MIN_FORWARD_ROWS, _MIN_FORWARD_ROWS_ON_CPU = 64, 256
# With at most this many rows decode is as fast over pages, which the forward has to copy in many
# small boxes.
_MAX_DECODE_ROWS_OF_PAGES = 2048
# ``decode`` serves packed queries over pages that would be copied, up to this many rows. ``decode``
# reads keys from memory once, and from L2 for every further 64 rows; copied keys pass through
# memory three times, but the forward computes faster. If nothing is copied the cost model decides
# from 65 rows on.
_MAX_DECODE_ROWS_OF_COPIES = 256
# The max number of rows for which pages are read in place, by the rows that one copy loads, which
# depend on page and tile sizes. More copies of fewer rows keep the SMs waiting; for more queries it
# is faster to copy the pages first. Measured on an H200.
_MAX_ROWS_IN_PLACE = {16: 512, 32: 768, 64: 1024, 128: 4096}


class PagedWay(Enum):
    """The ways to compute packed queries over pages."""

    SPLIT_KV = "decode reads the pages"
    IN_PLACE = "the forward reads the pages"
    GATHERED = "the forward reads copies of the pages"


def is_for_forward(
    q: torch.Tensor, cache: KVCache, variant: Variant, out: torch.Tensor | None
) -> bool:
    """Returns whether the forward can compute a call of ``decode``, and is faster. ``out``: the
    tensor for o."""
    rows = q.shape[1] * _sharing_heads(q, cache)
    too_few = rows <= (_MIN_FORWARD_ROWS_ON_CPU if q.is_cpu else MIN_FORWARD_ROWS)
    if cache.block_table is not None and not q.is_cpu:
        too_few |= rows <= _MAX_DECODE_ROWS_OF_PAGES
    if too_few or not (_forward_reads(q, cache) and (out is None or out.is_contiguous())):
        return False
    k_shape = (q.shape[0], cache.rows, *cache.k.shape[2:])
    return _is_forward_faster(q.dtype, q.shape, k_shape, cache.v.shape[-1], variant, q.device)


def paged_way(
    q: torch.Tensor,
    cache: KVCache,
    longest_q: int | None,
    config: ForwardKernelConfig | None,
    causal: bool,
) -> PagedWay:
    """Returns the way to compute queries (total_q, n_heads, d_head) over the pages of a cache.

    The host knows all inputs of the decision, except in a traced call, which cannot know a tensor's
    offset in memory. longest_q: An upper bound of a request's queries; None: all, or not known.
    """
    if config is None and _is_for_decode(q, cache, longest_q, causal):
        return PagedWay.SPLIT_KV
    is_memory = are_memory(q, cache.k, cache.v)  # the forward has no operator over pages
    if is_memory and _is_read_in_place(q, cache, longest_q, config, causal):
        return PagedWay.IN_PLACE
    return PagedWay.GATHERED


def are_read_in_place(device: torch.device, page_size: int) -> bool:
    """Returns whether the forward reads pages of the usual layout in place, however many queries
    there are."""
    return page_size % max(_MAX_ROWS_IN_PLACE) == 0 and reads_pages(device)


def _is_for_decode(q: torch.Tensor, cache: KVCache, longest_q: int | None, causal: bool) -> bool:
    assert cache.block_table is not None
    if is_compiling() or not longest_q or not q.numel() or not cache.block_table.numel():
        return False
    d_head = q.shape[-1]
    rows = longest_q * _sharing_heads(q, cache)
    if rows > _MAX_DECODE_ROWS_OF_COPIES or not cache.is_dense(d_head):
        return False
    in_place = cache.has_pages_in_order(d_head) and reads_pages(q.device)
    if rows <= MIN_FORWARD_ROWS or q.is_cpu or not in_place:
        return True
    sizes = _sizes(q, cache, longest_q)
    return not _is_forward_faster(*sizes, Variant(causal=causal, varlen=True), q.device)


def _is_read_in_place(
    q: torch.Tensor,
    cache: KVCache,
    longest_q: int | None,
    config: ForwardKernelConfig | None,
    causal: bool,
) -> bool:
    """Returns whether the forward can read the pages in place, and loses less time by it than a
    copy takes."""
    if not cache.has_pages_in_order(q.shape[-1]):
        return False
    if config is not None:  # the caller's choice
        return config.serves_variant(PAGED)
    if q.is_cpu or not reads_pages(q.device):  # time does not count on the emulator
        return reads_pages(q.device)
    longest = q.shape[0] if longest_q is None else longest_q
    sizes = _sizes(q, cache, longest)
    chosen = chosen_over_cache(*sizes, replace(PAGED, causal=causal), q.device)
    together = gcd(cache.k.shape[1], chosen.B_c)
    limit = max(rows for minimum, rows in _MAX_ROWS_IN_PLACE.items() if minimum <= together)
    return longest * _sharing_heads(q, cache) <= limit


def _sharing_heads(q: torch.Tensor, cache: KVCache) -> int:
    """Returns the number of heads of q that share a head of the cache."""
    return int(q.shape[-2] // max(cache.k.shape[2], 1))


def _forward_reads(q: torch.Tensor, cache: KVCache) -> bool:
    """Returns whether the forward can read the cache in place."""
    if cache.k.dtype != q.dtype or not cache.batch_idx is cache.leftpad is None:
        return False
    if cache.block_table is None:
        strides = (*cache.k.stride(), *cache.v.stride())
        return cache.k.shape[0] == q.shape[0] and min(strides) > 0
    in_order = cache.k.is_contiguous() and cache.v.is_contiguous()
    return in_order and cache.k.shape[1] % PAGE_ROWS == 0 and reads_pages(q.device)


def _sizes(q: torch.Tensor, cache: KVCache, longest_q: int) -> tuple[Any, ...]:
    """Returns the arguments of ``chosen_over_cache``, assuming that all requests have the max
    lengths."""
    assert cache.block_table is not None
    batch = cache.block_table.shape[0]
    k_shape = (batch, cache.rows, *cache.k.shape[2:])
    return q.dtype, (batch, longest_q, *q.shape[1:]), k_shape, cache.v.shape[-1]


def _is_forward_faster(*sizes_and_variant: Any) -> bool:
    """Returns whether the forward is chosen. Args: see ``chosen_over_cache``."""
    return not isinstance(chosen_over_cache(*sizes_and_variant), DecodeKernelConfig)


@functools.lru_cache(4096)
def chosen_over_cache(
    dtype: torch.dtype,
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    d_v: int,
    variant: Variant,
    device: torch.device,
) -> AttentionKernelConfig:
    """Returns the choice of ``attention`` over a cache. Shapes have four sizes, without pages."""
    problem = Problem.of_shapes(dtype_of(dtype, device), q_shape, k_shape, d_v)
    return select_for(Workload(problem, variant), device, is_cache=True)


forget_with_tables(chosen_over_cache.cache_clear)
