"""Decode: few queries of each request over the keys of a KV cache."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import flashsmith
from flashsmith.configs import DecodeKernelConfig
from flashsmith.lab.bench.operations.base import OURS, OperationBench, Run
from flashsmith.lab.bench.operations.decode_inputs import FP8, DecodeInputs
from flashsmith.lab.bench.operations.decode_peers import DECODE_PEERS

ALL_ROWS = f"{OURS} all rows"
_BESIDE = {OURS: ("fa3", "flashinfer"), ALL_ROWS: ("fa2", "cudnn", "fa3 all rows")}


def _ours(given: DecodeInputs, splits: int) -> Run:
    return partial(flashsmith.decode, None, splits=splits, **given.keywords)


def _all_rows(given: DecodeInputs) -> Run | None:
    """Returns a run without lengths, as peers of the forward have, for full slots."""
    cache = given.cache
    if cache.table is not None or not cache.is_full or cache.k.dtype != given.q.dtype:
        return None
    return partial(flashsmith.decode, None, **given.keywords | {"cache_seqlens": None})


def _by_attention(given: DecodeInputs) -> Run | None:
    cache = given.cache
    if cache.table is not None or cache.k.dtype != given.q.dtype:
        return None
    return partial(flashsmith.attention, given.q, cache.k, cache.v)


def _per_token_scales(given: DecodeInputs) -> Run | None:
    """Returns a run with per-token scales, for an FP8 cache."""
    k = given.cache.k
    if k.dtype != FP8:
        return None
    ones = torch.ones(k.shape[:3], device=k.device)
    scales: dict[str, Any] = {"k_scale": ones, "v_scale": ones.clone()}
    return partial(flashsmith.decode, None, **given.keywords, **scales)


def _of_config(config: DecodeKernelConfig, given: DecodeInputs) -> Run | None:
    if (config.d_head, config.fp8_cache) != (given.q.shape[-1], given.cache.k.dtype == FP8):
        return None
    return partial(flashsmith.decode, config, **given.keywords)


DECODE_BENCH = OperationBench(
    prepare=DecodeInputs,
    ours={
        OURS: partial(_ours, splits=0),
        ALL_ROWS: _all_rows,
        f"{OURS} splits 1": partial(_ours, splits=1),
        f"{OURS} splits 8": partial(_ours, splits=8),
        f"{OURS} attention": _by_attention,
        f"{OURS} per-token scales": _per_token_scales,
    },
    kernels=DecodeKernelConfig.operation,
    of_config=_of_config,
    peers=DECODE_PEERS,
    beside=_BESIDE,
)
