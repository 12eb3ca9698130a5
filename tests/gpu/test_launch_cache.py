"""Calls that bypass Python, on a GPU: which memory they use, and on which device."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch

import flashsmith
from flashsmith.flash_attn import flash_attn_varlen_func
from flashsmith.ops import decode_calls, forward
from flashsmith.selection.choose import forget_calls

pytestmark = pytest.mark.gpu

HEADS, D_HEAD = 4, 128
Packed = tuple[torch.Tensor, torch.Tensor, int]


def packed(seed: int, n_sequences: int = 12) -> Packed:
    """Returns rows of sequences of random lengths, their offsets and the maximum length."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 257, (n_sequences,), generator=generator)
    lengths[0] = 256  # puts all batches into one size class
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to("cuda", torch.int32)
    rows = torch.randn(int(lengths.sum()), HEADS, D_HEAD, generator=generator)
    return rows.cuda().bfloat16(), offsets, 256


def attend(given: Packed) -> torch.Tensor:
    rows, offsets, longest = given
    o = flash_attn_varlen_func(rows, rows, rows, offsets, offsets, longest, longest, causal=True)
    assert isinstance(o, torch.Tensor)
    return o


def one_by_one(given: Packed) -> torch.Tensor:
    rows, offsets, _ = given
    parts = [rows[a:b][None] for a, b in pairwise(offsets.tolist())]
    return torch.cat([flashsmith.attention(t, t, t, causal=True)[0] for t in parts])


def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a call fail when it leaves the launch cache."""
    monkeypatch.setattr(forward, "_slowly", lambda *_: pytest.fail("the call came to Python"))
    monkeypatch.setattr(decode_calls, "_launch", lambda *_: pytest.fail("the call came to Python"))


def test_packed_calls_of_other_lengths_keep_one_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [packed(seed) for seed in range(8)]
    expected = [one_by_one(each) for each in given]
    forget_calls()
    attend(given[0])
    closed(monkeypatch)
    held = torch.cuda.memory_stats()["allocation.all.allocated"]
    found = [attend(each) for each in given]
    assert torch.cuda.memory_stats()["allocation.all.allocated"] - held == len(given)  # one o each
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)


def test_threads_on_one_stream_have_tables_of_tiles_of_their_own() -> None:
    """Each call launches twice, so that launches of two threads may alternate."""
    given = [packed(seed) for seed in range(6)]
    expected = [attend(each) for each in given]

    def work(i: int) -> int:
        return sum(not torch.equal(attend(given[i]), expected[i]) for _ in range(300))

    with ThreadPoolExecutor(len(given)) as threads:
        assert sum(threads.map(work, range(len(given)))) == 0


def test_a_graph_has_a_table_of_tiles_of_its_own() -> None:
    """Eager calls of the same thread and stream write their table between two replays."""
    first, second = packed(0), packed(1)
    expected = attend(first), attend(second)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        attend(first)
        with torch.cuda.graph(graph, stream=stream):
            o = attend(first)
        for _ in range(20):
            o.zero_()
            found = attend(second)
            graph.replay()
            assert torch.equal(found, expected[1]) and torch.equal(o, expected[0])


def decode_on(device: str) -> torch.Tensor:
    q, k = torch.ones(2, 1, 8, 128), torch.ones(2, 4096, 2, 128)
    q, k = (t.to(device, torch.bfloat16) for t in (q, k))
    o = flashsmith.decode(None, q, k, k)
    assert isinstance(o, torch.Tensor)
    return o


def calls_on_both_devices(first: str, second: str) -> None:
    """Runs decode on both devices; the process loads the library of ``first`` first."""
    decode_on(first)
    for device in (second, first):
        decode_on(device)
        if device == "cuda":
            with pytest.MonkeyPatch.context() as patched:
                closed(patched)
                assert decode_on("cuda").eq(1).all()


@pytest.mark.parametrize(("first", "second"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_the_library_of_another_device_finds_the_memory_of_the_stream(
    first: str, second: str
) -> None:
    """The first library that a process loads makes the cache for all devices."""
    program = (
        "from gpu.test_launch_cache import calls_on_both_devices; "
        f"calls_on_both_devices({first!r}, {second!r})"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
