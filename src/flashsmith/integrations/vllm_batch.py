"""Divides a batch of vLLM's requests into parts; one call of flashsmith computes each part.

This module uses only the field names of vLLM's metadata, and does not import vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

import torch

from flashsmith.integrations.pages import attend_pages
from flashsmith.ops.attention import attention
from flashsmith.ops.decode import decode

# Pages of requests are copied up to this number of rows at a time: 256 MiB at 8 heads of 128
# elements.
_MAX_ROWS_TO_COPY = 1 << 16


class Keys(NamedTuple):
    """k_pages, v_pages: (pages, page_size, heads, head_size). k, v: (tokens, heads, head_size), the
    batch's keys and values, which the pages hold, too; None: only the pages hold them. k_scale,
    v_scale: the scales of FP8 pages; see ``decode``."""

    k_pages: torch.Tensor
    v_pages: torch.Tensor
    k: torch.Tensor | None
    v: torch.Tensor | None
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None


@dataclass(frozen=True)
class Decodes:
    """The first requests of a batch, which have equal numbers of queries and share one ``decode``.

    Only numbers in vLLM's buffers change from step to step, so that a CUDA graph of the call can be
    replayed.
    """

    n_requests: int
    n_queries: int  # of each request
    seq_lens: torch.Tensor
    block_table: torch.Tensor

    def attend(
        self, q: torch.Tensor, keys: Keys, out: torch.Tensor, semantics: dict[str, Any]
    ) -> None:
        shape = self.n_requests, self.n_queries, *q.shape[1:]
        rows = slice(self.n_requests * self.n_queries)
        decode(
            None, q[rows].view(shape), keys.k_pages, keys.v_pages,
            cache_seqlens=self.seq_lens, block_table=self.block_table, k_scale=keys.k_scale,
            v_scale=keys.v_scale, out=out[rows].view(shape), **semantics,
        )  # fmt: skip


@dataclass(frozen=True)
class Packed:
    """Packed requests with any numbers of queries."""

    tokens: slice
    cu_seqlens: torch.Tensor  # of queries, relative to the first of ``tokens``
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    max_query_len: int
    max_seq_len: int
    is_new: bool  # the cache was empty before: all keys are in the batch

    def attend(
        self, q: torch.Tensor, keys: Keys, out: torch.Tensor, semantics: dict[str, Any]
    ) -> None:
        q, out = q[self.tokens], out[self.tokens]
        of_q: dict[str, Any] = {"cu_seqlens_q": self.cu_seqlens, "max_seqlen_q": self.max_query_len}
        if self.is_new and keys.k is not None and keys.v is not None:
            attention(
                q, keys.k[self.tokens], keys.v[self.tokens], cu_seqlens_k=self.cu_seqlens,
                max_seqlen_k=self.max_query_len, out=out, **of_q, **semantics,
            )  # fmt: skip
            return
        attend_pages(
            q, keys.k_pages, keys.v_pages, block_table=self.block_table, seqused_k=self.seq_lens,
            max_seqlen_k=self.max_seq_len, k_scale=keys.k_scale, v_scale=keys.v_scale, out=out,
            **of_q, **semantics,
        )  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """A batch as layers get it: vLLM's attn_metadata."""

    num_actual_tokens: int
    parts: tuple[Decodes | Packed, ...]


def divide(given: Any, few: int, copied: bool = True) -> Batch:
    """Returns the parts of a batch.

    Args:
        given: vLLM's CommonAttentionMetadata. Requests with few queries come first.
        few: The max number of queries that counts as few.
        copied: Whether pages of requests with more are copied first.

    Raises:
        NotImplementedError: The batch is not causal.
    """
    if given.causal is not True:
        raise NotImplementedError("causal is not True; only causal batches are supported")
    begins = given.query_start_loc_cpu[: given.num_reqs + 1].tolist()
    known = given.seq_lens_cpu_upper_bound
    n_keys = [given.max_seq_len] * given.num_reqs if known is None else known.tolist()
    requests = [
        _Request(end - begin, keys)
        for (begin, end), keys in zip(pairwise(begins), n_keys, strict=False)
    ]
    decodes = _decodes(given, requests, few)
    parts: list[Decodes | Packed] = [decodes] if decodes else []
    max_rows = _MAX_ROWS_TO_COPY if copied else None
    for first, end in _groups(requests, decodes.n_requests if decodes else 0, few, max_rows):
        if begins[end] > begins[first]:
            parts.append(_packed(given, begins, requests, first, end))
    return Batch(given.num_actual_tokens, tuple(parts))


class _Request(NamedTuple):
    """A request's numbers as the host knows them."""

    n_queries: int
    n_keys: int  # an upper bound, including the keys of its queries

    @property
    def is_new(self) -> bool:
        return self.n_keys <= self.n_queries


def _decodes(given: Any, requests: list[_Request], few: int) -> Decodes | None:
    """Returns the longest part that begins with the first request; None if there is none."""
    each = requests[0].n_queries if requests else 0
    if not 0 < each <= few:
        return None
    equal = sum(1 for _ in takewhile(lambda request: request.n_queries == each, requests))
    if not any(request.n_queries for request in requests[equal:]):
        # Requests without queries pad the batch to a graph's size; they have rows of their own.
        equal = min(len(requests), given.num_actual_tokens // each)
    return Decodes(equal, each, given.seq_lens[:equal], given.block_table_tensor[:equal])


def _groups(
    requests: list[_Request], first: int, few: int, max_rows: int | None
) -> Iterator[tuple[int, int]]:
    """Yields ranges (first, end) of requests that one call computes efficiently.

    A range has only requests with few queries, which ``decode`` serves; only new requests, whose
    pages are not read; or other requests with at most ``max_rows`` rows together, or any number
    for None.
    """

    def kind(request: _Request) -> tuple[bool, bool]:
        return request.n_queries <= few, request.is_new

    while first < len(requests):
        kind_of_all, longest, end = kind(requests[first]), 0, first
        while end < len(requests) and kind(requests[end]) == kind_of_all:
            longest = max(longest, requests[end].n_keys)
            rows = (end + 1 - first) * longest
            too_many = max_rows is not None and rows > max_rows
            if end > first and not any(kind_of_all) and too_many:
                break
            end += 1
        yield first, end
        first = end


def _packed(
    given: Any, begins: list[int], requests: list[_Request], first: int, end: int
) -> Packed:
    own = requests[first:end]
    return Packed(
        slice(begins[first], begins[end]),
        given.query_start_loc[first : end + 1] - begins[first],
        given.seq_lens[first:end],
        given.block_table_tensor[first:end],
        max(request.n_queries for request in own),
        max(request.n_keys for request in own),
        all(request.is_new for request in own),
    )
