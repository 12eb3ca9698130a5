"""Decode on a GPU: its soak, the same bits every time, graphs, streams, new keys."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import DecodeKernelConfig
from flashsmith.lab.soak import CardLoad
from flashsmith.reference import reference_varlen
from flashsmith.selection.select import select_config

pytestmark = pytest.mark.gpu

RUNS = 1000
ROWS, HEADS, HEADS_KV, D_HEAD = 2048, 32, 8, 128
_NEAR = 0.02


class Requests:
    """Requests with equal numbers of queries; rows behind their lengths hold NaN."""

    def __init__(self, lengths: list[int], seed: int = 0, queries: int = 1) -> None:
        torch.manual_seed(seed)
        batch = len(lengths)
        self.q = torch.randn(batch, queries, HEADS, D_HEAD, device="cuda").bfloat16()
        self.k = torch.randn(batch, ROWS, HEADS_KV, D_HEAD, device="cuda").bfloat16()
        self.v = torch.randn_like(self.k)
        self.seqlens = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        for i, length in enumerate(lengths):
            self.k[i, length:] = self.v[i, length:] = math.nan

    def decode(self, **keywords: object) -> torch.Tensor:
        found = flashsmith.decode(
            None, self.q, self.k, self.v, cache_seqlens=self.seqlens, **keywords
        )
        assert isinstance(found, torch.Tensor)
        return found

    def assert_near(self, o: torch.Tensor, **semantics: Any) -> None:
        exact, _ = reference_varlen(self.q, self.k, self.v, seqused_k=self.seqlens, **semantics)
        assert ((o.double() - exact).abs() < _NEAR * (1 + exact.abs() / 2)).all()


LENGTHS = [0, 1, 15, 17, 64, 65, 129, 1000, ROWS, ROWS]


@pytest.mark.parametrize("lengths", [LENGTHS, [ROWS]], ids=["many", "one"])
@pytest.mark.parametrize("splits", [0, 3])
@pytest.mark.parametrize("queries", [1, 5, 16, 20])
def test_every_run_has_the_same_bits_beside_another_stream(
    lengths: list[int], splits: int, queries: int
) -> None:
    asked, load = Requests(lengths, queries=queries), CardLoad()
    first = asked.decode(splits=splits)
    asked.assert_near(first)
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for i in range(RUNS):
        if i % 10 == 0:
            load.add()
        differing += (asked.decode(splits=splits) != first).any()
    load.wait()
    assert differing.item() == 0


def test_attention_of_few_queries_is_decodes_in_a_graph_too() -> None:
    """Decode serves few queries on data-centre GPUs; the test skips others."""
    asked = Requests([ROWS] * 4, queries=4)
    given = asked.q, asked.k, asked.v
    if not isinstance(select_config(asked.q, True, k=asked.k), DecodeKernelConfig):
        pytest.skip("the forward serves few queries here")
    expected, lse = flashsmith.decode(None, *given, causal=True, return_lse=True)
    found = flashsmith.attention(*given, causal=True, return_lse=True)
    assert torch.equal(found[0], expected)
    assert torch.equal(found[1], lse)
    out, graph = torch.empty_like(asked.q), torch.cuda.CUDAGraph()
    flashsmith.attention(*given, causal=True, out=out)
    with torch.cuda.graph(graph):
        flashsmith.attention(*given, causal=True, out=out)
    out.zero_()
    graph.replay()
    assert torch.equal(out, expected)


def assert_same_on_streams(asked: list[Requests], splits: int = 0) -> None:
    """Asserts that calls have the same bits beside each other, each on a stream, as alone."""
    expected = [each.decode(splits=splits) for each in asked]
    streams = [torch.cuda.Stream() for _ in asked]
    torch.cuda.synchronize()
    found: list[list[torch.Tensor]] = [[] for _ in asked]
    for _ in range(100):
        for own, each, stream in zip(found, asked, streams, strict=True):
            with torch.cuda.stream(stream):
                own.append(each.decode(splits=splits))
    torch.cuda.synchronize()
    for own, right in zip(found, expected, strict=True):
        assert all(torch.equal(o, right) for o in own)


def test_calls_on_two_streams_do_not_meet() -> None:
    assert_same_on_streams([Requests(LENGTHS, seed) for seed in range(2)])


def test_splits_that_wait_for_each_other_give_way_to_other_streams() -> None:
    """The splits of each call take nearly all SMs of an H200, so that two calls wait for thread
    blocks that the other one keeps from beginning."""
    asked = [Requests([ROWS] * 4, seed, queries=20) for seed in range(3)]
    for each in asked:
        each.assert_near(each.decode(splits=4))
    assert_same_on_streams(asked, splits=4)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("queries", [1, 16, 40])
def test_a_graph_is_replayed_with_other_lengths(queries: int, batch: int) -> None:
    asked = Requests([ROWS] * batch, queries=queries)
    out = torch.empty_like(asked.q)
    asked.decode(out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        asked.decode(out=out)
    for seed in range(5):
        chosen = torch.Generator().manual_seed(seed)
        asked.seqlens.copy_(torch.randint(0, ROWS + 1, (batch,), generator=chosen).int())
        graph.replay()
        asked.assert_near(out)


@pytest.mark.parametrize("queries", [1, 16, 40])
@pytest.mark.parametrize("lengths", [[ROWS], [ROWS, 3, 700, 64]], ids=["one", "uneven"])
def test_launches_that_overlap_see_what_those_before_have_written(
    lengths: list[int], queries: int
) -> None:
    """The output of a call is the next one's query, and all calls share a workspace. Three tensors
    take turns as output, so that each is written shortly after other launches read it."""
    asked = Requests(lengths, queries=queries)
    first, calls = asked.q, 20
    expected = []
    for _ in range(calls):
        asked.q = asked.decode()
        torch.cuda.synchronize()
        expected.append(asked.q)
    outs = [torch.empty_like(first) for _ in range(3)]

    def chain() -> None:
        asked.q = first
        for i in range(calls):
            asked.q = asked.decode(out=outs[i % 3])

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    for run in (chain, graph.replay, graph.replay):
        for out in outs:
            out.fill_(math.nan)
        run()
        for i in range(calls - 3, calls):
            assert torch.equal(outs[i % 3], expected[i])


@pytest.mark.parametrize("splits", [0, 3])
def test_a_graph_is_replayed_with_other_trees_of_drafts(splits: int) -> None:
    nodes, batch = 64, 4
    asked = Requests([ROWS] * batch, queries=nodes)
    paths = torch.zeros(batch, nodes, nodes, dtype=torch.bool, device="cuda")
    sizes = torch.full((batch,), nodes, dtype=torch.int32, device="cuda")

    def tree(b: Any, h: Any, q: Any, k: Any) -> Any:
        node = k - (asked.seqlens[b] - sizes[b])
        return (node < 0) | paths[b, q, node]

    out, graph = torch.empty_like(asked.q), torch.cuda.CUDAGraph()
    asked.decode(out=out, mask_mod=tree, splits=splits)
    with torch.cuda.graph(graph):
        asked.decode(out=out, mask_mod=tree, splits=splits)
    for seed in range(5):
        chosen = torch.Generator().manual_seed(seed)
        parents = torch.rand(batch, nodes, generator=chosen).mul(torch.arange(nodes)).int() - 1
        now = torch.eye(nodes, dtype=torch.bool).repeat(batch, 1, 1)
        for b in range(batch):
            for node, parent in enumerate(parents[b].tolist()):
                if parent >= 0:
                    now[b, node] |= now[b, parent]
        paths.copy_(now)
        sizes.copy_(torch.randint(1, nodes + 1, (batch,), generator=chosen))
        asked.seqlens.copy_(torch.randint(nodes, 2 * nodes, (batch,), generator=chosen))
        graph.replay()
        first = (asked.seqlens - sizes).tolist()
        visible = torch.zeros(batch, nodes, ROWS, dtype=torch.bool, device="cuda")
        for b, (begin, size) in enumerate(zip(first, sizes.tolist(), strict=True)):
            visible[b, :, :begin] = True
            visible[b, :, begin : begin + size] = paths[b, :, :size]
        asked.assert_near(out, mask_mod=lambda b, h, q, k, v=visible: v[b, q, k])


def test_a_graph_appends_and_goes_on() -> None:
    """Each replay writes one key, and the graph itself advances the lengths."""
    asked = Requests([5, 100, 1000])
    whole = Requests([5, 100, 1000])
    whole.k.nan_to_num_(0.5)
    whole.v.nan_to_num_(0.5)
    k_new, v_new = (torch.full_like(t[:, :1], 0.5) for t in (asked.k, asked.v))
    out = torch.empty_like(asked.q)
    asked.decode(k_new=k_new, v_new=v_new, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        asked.decode(k_new=k_new, v_new=v_new, out=out)
        asked.seqlens += 1
    for _ in range(4):
        graph.replay()
        whole.seqlens.copy_(asked.seqlens)
        whole.assert_near(out)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("of_tokens", [False, True], ids=["of heads", "of tokens"])
def test_every_number_becomes_the_byte_that_torch_says(of_tokens: bool, dtype: torch.dtype) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32, device="cuda").to(torch.uint16)
    new = every.view(dtype).view(1, 256, 2, D_HEAD)
    shape = (1, 256, 2) if of_tokens else (2,)
    scale = torch.rand(shape, device="cuda") + 2.0**-9
    caches = [torch.zeros_like(new, dtype=torch.float8_e4m3fn) for _ in range(2)]
    flashsmith.decode(
        None, torch.zeros_like(new[:, :1]), *caches, cache_seqlens=0, k_new=new,
        v_new=new.flip(1), k_scale=scale, v_scale=scale,
    )  # fmt: skip
    for cache, x in zip(caches, (new, new.flip(1)), strict=True):
        divided = x.float() / scale[..., None]
        expected = divided.clamp(-448, 448).to(torch.float8_e4m3fn).float()
        torch.testing.assert_close(cache.float(), expected, rtol=0, atol=0, equal_nan=True)


def test_calls_are_right_after_a_capture_that_was_given_up() -> None:
    """One work tile needs all blocks, which count their arrivals in the workspace."""
    asked = Requests([ROWS])
    expected, out = asked.decode(), torch.empty_like(asked.q)

    class GivenUpError(Exception):
        pass

    with pytest.raises(GivenUpError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        asked.decode(out=out)
        raise GivenUpError
    assert torch.equal(asked.decode(), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        asked.decode(out=out)
    graph.replay()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("appends", [False, True], ids=["", "append"])
def test_inductor_captures_steps(appends: bool) -> None:
    """Inductor warms each step up with the graph's memory, which the library must not keep."""
    torch.compiler.reset()
    asked = Requests([ROWS - 10])
    k, v = asked.k.nan_to_num(0.5), asked.v.nan_to_num(0.5)
    new = {"k_new": torch.randn_like(k[:, :1]), "v_new": torch.randn_like(k[:, :1])}

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seqlens: torch.Tensor) -> object:
        appended = new if appends else {}
        return flashsmith.decode(None, q + 0, k, v, cache_seqlens=seqlens, **appended)

    own_k, own_v = k.clone(), v.clone()
    for t in (own_k, own_v):  # otherwise torch captures no graph that writes to them
        torch._dynamo.mark_static_address(t)
    compiled = torch.compile(step, mode="reduce-overhead", fullgraph=True)
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        found = compiled(asked.q, own_k, own_v, asked.seqlens)
        assert torch.equal(found, step(asked.q, k, v, asked.seqlens))
        assert torch.equal(own_k, k) and torch.equal(own_v, v)
        asked.seqlens += 1
