"""Other implementations of decode, for benchmarks/decode.py."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from flashsmith.lab.bench import fa3
from flashsmith.lab.bench.peers import PEERS as FORWARD_PEERS

Run = Callable[[], Any]

_WORKSPACE_BYTES = 512 << 20  # of FlashInfer, whose own limit is none
_ALL_ROWS = "all rows"


@dataclass(frozen=True)
class Cache:
    """Keys and values of requests: entries of (batch, rows, n_heads_kv, d_head), or pages of
    (n_pages, page_size, n_heads_kv, d_head) with a table of (batch, pages of a request)."""

    k: torch.Tensor
    v: torch.Tensor
    lengths: torch.Tensor
    table: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        """That a request has room for."""
        return self.k.shape[1] * (1 if self.table is None else self.table.shape[1])

    @property
    def is_full(self) -> bool:
        return bool((self.lengths == self.rows).all())


@dataclass(frozen=True)
class DecodePeer:
    """One implementation. ``make(q, cache)`` returns a function that computes o, or None if it does
    not take such a cache; what is planned once for many layers is done in ``make``."""

    make: Callable[[torch.Tensor, Cache], Run | None]
    why_missing: Callable[[], str]  # "" where it can be used
    build: Callable[[], str]


def _dense(name: str, q: torch.Tensor, cache: Cache) -> Run | None:
    """A peer of the forward, for which all requests have all rows."""
    if cache.table is not None or not cache.is_full or cache.k.dtype != q.dtype:
        return None
    return FORWARD_PEERS[name].make(q, cache.k, cache.v, False)


def _fa3(has_lengths: bool, q: torch.Tensor, cache: Cache) -> Run | None:
    """The kernels behind its flash_attn_with_kvcache, which split keys as they like."""
    if cache.k.dtype != q.dtype or not (has_lengths or (cache.table is None and cache.is_full)):
        return None
    run = partial(
        fa3.load_operators().fwd,
        q,
        cache.k,
        cache.v,
        seqused_k=cache.lengths if has_lengths else None,
        page_table=cache.table,
        softmax_scale=q.shape[-1] ** -0.5,
    )
    return lambda: run()[0]


def _flashinfer(q: torch.Tensor, cache: Cache) -> Run | None:
    """Its wrapper for decode on tensor cores, or for prefill where a request has several queries,
    with the implementation that it chooses. The plan is made once."""
    if cache.table is None:
        return None
    batch, queries, n_heads, d_head = q.shape
    page_size, n_heads_kv = cache.k.shape[1:3]
    n_pages = (cache.lengths + page_size - 1) // page_size
    first_pages = torch.cat([n_pages.new_zeros(1), n_pages.cumsum(0).int()])
    pages = torch.cat([row[:n] for row, n in zip(cache.table, n_pages.tolist(), strict=True)])
    listed = (first_pages, pages, cache.lengths - (n_pages - 1) * page_size)
    heads = (n_heads, n_heads_kv, d_head)
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    dtypes = {"q_data_type": q.dtype, "kv_data_type": cache.k.dtype, "o_data_type": q.dtype}
    rows = q.reshape(-1, n_heads, d_head)
    import flashinfer

    wrapper: Any
    if queries == 1:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_tensor_cores=True
        )
        wrapper.plan(*listed, *heads, page_size, **dtypes)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        first_queries = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * queries
        wrapper.plan(first_queries, *listed, *heads, page_size, causal=False, **dtypes)
    return lambda: wrapper.run(rows, (cache.k, cache.v)).view(q.shape)


def _why_no_flashinfer() -> str:
    return "" if importlib.util.find_spec("flashinfer") else "flashinfer is not installed"


def _flashinfer_build() -> str:
    return f"flashinfer-python {importlib.metadata.version('flashinfer-python')}"


def _of_forward(name: str, make: Callable[[torch.Tensor, Cache], Run | None]) -> DecodePeer:
    peer = FORWARD_PEERS[name]
    return DecodePeer(make, peer.why_missing, peer.build)


PEERS = {
    "fa2": _of_forward("fa2", partial(_dense, "fa2")),
    "cudnn": _of_forward("cudnn", partial(_dense, "cudnn")),
    "fa3": _of_forward("fa3", partial(_fa3, True)),
    f"fa3 {_ALL_ROWS}": _of_forward("fa3", partial(_fa3, False)),
    "flashinfer": DecodePeer(_flashinfer, _why_no_flashinfer, _flashinfer_build),
}
