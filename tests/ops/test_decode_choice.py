"""Decisions of ``decode`` by sizes alone, on fake GPUs, also for odd sizes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from flashsmith.configs.workload import D_HEADS
from flashsmith.ops import decode_calls, dispatch
from flashsmith.ops.checks import FP8
from flashsmith.ops.decode_call import DecodeCall, DecodeOptions
from flashsmith.ops.dispatch import PagedWay
from flashsmith.ops.kv_cache import KVCache
from flashsmith.selection.select import reads_pages, select_for

GPUS = {"NVIDIA H200": (9, 0), "NVIDIA A100-SXM4-80GB": (8, 0), "NVIDIA L40S": (8, 9)}


@pytest.fixture(params=GPUS)
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Makes torch believe that the GPU is here."""
    name: str = request.param
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: GPUS[name])
    forget_choices()
    yield name
    forget_choices()


def forget_choices() -> None:
    for remembers in (reads_pages, select_for, dispatch.chosen_over_cache):
        remembers.cache_clear()


def drawn(random: Random) -> DecodeCall:
    """Returns a random call, possibly empty, over slots or pages, in 16 bits or FP8."""
    heads_kv, d_head = random.choice([1, 2, 8]), random.choice(D_HEADS)
    batch, n_queries = random.choice([0, 1, 3, 300]), random.choice([0, 1, 4, 16, 64, 300, 3000])
    heads = heads_kv * random.choice([1, 4, 8])
    q = torch.empty(batch, n_queries, heads, d_head, dtype=torch.bfloat16, device="cuda")
    dtype, table = random.choice([torch.bfloat16, FP8]), None
    entries, rows = batch, random.choice([0, 1, 100, 8192])
    if random.random() < 0.5:
        entries, rows = random.choice([0, 1, 50]), random.choice([1, 7, 16, 64, 128, 256])
        table = torch.empty(batch, random.choice([0, 1, 8]), dtype=torch.int32, device="cuda")
    k = torch.empty(entries, rows, heads_kv, d_head, dtype=dtype, device="cuda")
    lengths = torch.empty(batch, dtype=torch.int32, device="cuda")
    return DecodeCall(q, KVCache(k, k, lengths, table), None, None, False, None, None)


@pytest.mark.usefixtures("gpu")
def test_any_sizes_have_a_configuration() -> None:
    random = Random(0)
    with FakeTensorMode():
        for _ in range(200):
            call = drawn(random)
            splits, window = random.choice([0, 4]), random.choice([(-1, -1), (10, 0)])
            asked = DecodeOptions(None, random.random() < 0.5, window, 0.0, splits)
            extras = decode_calls._extras(asked, call)
            dispatch.is_for_forward(call.q, call.cache, extras.variant, None)
            config = decode_calls._choose(asked, call, extras, call.q.shape[-1]).config
            assert config.fp8_cache == (call.cache.k.dtype == FP8), call.q.shape


def test_any_packed_queries_over_pages_have_a_way(
    gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, ways = Random(1), set()
    with FakeTensorMode():
        for _ in range(200):
            call = drawn(random)
            if call.cache.block_table is None:
                continue
            longest = random.choice([None, 0, 1, 8, 70, 600])
            q, cache = call.q.flatten(0, 1), call.cache
            with monkeypatch.context() as patch:  # fake tensors have no memory
                patch.setattr(dispatch, "are_memory", lambda *_: True)
                way = dispatch.paged_way(q, cache, longest, None, causal=True)
            ways.add(way)
            assert not (way is PagedWay.IN_PLACE and cache.is_fp8)
            if way is PagedWay.SPLIT_KV:
                assert longest and cache.block_table is not None and cache.block_table.numel()
    assert PagedWay.SPLIT_KV in ways and PagedWay.GATHERED in ways
    assert (PagedWay.IN_PLACE in ways) == (gpu == "NVIDIA H200")
