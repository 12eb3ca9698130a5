"""What ``decode`` decides by sizes alone, on GPUs that are not here: for odd sizes, too."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from flashsmith.configs.workload import D_HEADS
from flashsmith.integrations import pages
from flashsmith.integrations.paged_keys import Pages
from flashsmith.ops import decode_calls
from flashsmith.ops.cache import Cache
from flashsmith.ops.checks import FP8
from flashsmith.ops.decode_calls import Asked, Call
from flashsmith.runtime import Extras
from flashsmith.selection.select import reads_pages, select_for

GPUS = {"NVIDIA H200": (9, 0), "NVIDIA A100-SXM4-80GB": (8, 0), "NVIDIA L40S": (8, 9)}


@pytest.fixture(params=GPUS)
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Torch believes that it is here."""
    name: str = request.param
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: GPUS[name])
    forget_choices()
    yield name
    forget_choices()


def forget_choices() -> None:
    for remembers in (reads_pages, select_for, pages.chosen_for):
        remembers.cache_clear()


def drawn(random: Random) -> Call:
    """A call of any sizes, also of none, over entries or pages, of 16 or of 8 bits."""
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
    return Call(q, Cache(k, k, lengths, table), None, None, False, None, None)


@pytest.mark.usefixtures("gpu")
def test_any_sizes_have_a_configuration() -> None:
    random = Random(0)
    with FakeTensorMode():
        for _ in range(200):
            call = drawn(random)
            splits, window = random.choice([0, 4]), random.choice([(-1, -1), (10, 0)])
            asked = Asked(None, random.random() < 0.5, window, 0.0, splits)
            extras = Extras(*call.extras(decode_calls._numbers(asked, call)))
            decode_calls.ManyQueries(call.q, call.cache).are_for_forward(extras.variant, None)
            config = decode_calls._choose(asked, call, extras, call.q.shape[-1]).config
            assert config.fp8_cache == (call.cache.k.dtype == FP8), call.q.shape


@pytest.mark.usefixtures("gpu")
def test_any_packed_queries_over_pages_have_a_way() -> None:
    random = Random(1)
    with FakeTensorMode():
        for _ in range(200):
            call = drawn(random)
            if call.cache.block_table is None:
                continue
            k, lengths = call.cache.k, call.cache.seqlens
            given = Pages(k, k, call.cache.block_table, lengths)
            longest = random.choice([None, 0, 1, 8, 70, 600])
            q = call.q.flatten(0, 1)
            few = pages._are_few(q, given, longest, causal=True)
            in_place = pages._are_read_in_place(q, given, longest, None, {"causal": True})
            assert not (in_place and k.dtype == FP8)
            assert not (few and not (longest and given.table.numel()))
