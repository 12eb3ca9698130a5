"""Other implementations of decode."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from flashsmith.lab.bench import fa3
from flashsmith.lab.bench.operations.base import OperationPeer, Run
from flashsmith.lab.bench.operations.decode_inputs import DecodeInputs
from flashsmith.lab.bench.peers import PEERS

_WORKSPACE_BYTES = 512 << 20  # for FlashInfer, which prescribes no size
_FLASHINFER_D_HEADS = (64, 128, 256)


def _dense(name: str, given: DecodeInputs) -> Run | None:
    """Returns a run of a peer of the forward, which needs requests that fill the cache."""
    q, cache = given.q, given.cache
    if cache.table is not None or not cache.is_full or cache.k.dtype != q.dtype:
        return None
    return PEERS[name].make(q, cache.k, cache.v, False)


def _fa3(given: DecodeInputs, has_lengths: bool) -> Run | None:
    """Returns a run of the kernels behind FA3's flash_attn_with_kvcache, whose heuristic chooses
    the number of splits."""
    q, cache = given.q, given.cache
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


def _flashinfer(given: DecodeInputs) -> Run | None:
    """Returns a run of FlashInfer's wrapper for decode on tensor cores, or for prefill if a request
    has several queries. FlashInfer chooses the implementation; the plan is made once. At other
    d_heads its merge of partial results fails in a way that no later call survives."""
    q, cache = given.q, given.cache
    if cache.table is None or q.shape[-1] not in _FLASHINFER_D_HEADS:
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
    flashinfer: Any = importlib.import_module("flashinfer")
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


@dataclass(frozen=True)
class _FlashInfer:
    def why_missing(self) -> str:
        return "" if importlib.util.find_spec("flashinfer") else "flashinfer is not installed"

    def build(self) -> str:
        return f"flashinfer-python {importlib.metadata.version('flashinfer-python')}"


DECODE_PEERS = {
    "fa2": OperationPeer(PEERS["fa2"], partial(_dense, "fa2")),
    "cudnn": OperationPeer(PEERS["cudnn"], partial(_dense, "cudnn")),
    "fa3": OperationPeer(PEERS["fa3"], partial(_fa3, has_lengths=True)),
    "fa3 all rows": OperationPeer(PEERS["fa3"], partial(_fa3, has_lengths=False)),
    "flashinfer": OperationPeer(_FlashInfer(), _flashinfer),
}
