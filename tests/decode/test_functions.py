"""The caller's score_mod and mask_mod in split-KV kernels: their arguments, and their order."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import flashsmith
from flashsmith.configs import DecodeKernelConfig
from flashsmith.configs.registry import DECODE
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.dtype import DType
from flashsmith.errors import TracingError
from flashsmith.ops import decode_calls
from flashsmith.reference import Semantics
from support.decoding import (
    PLAIN,
    TEAMS,
    Requests,
    assert_near_truth,
    assert_right,
    assert_same_bits,
    in_pages,
    requests,
)
from support.fp8_caches import SMALL, Quantised

WIDE, TALL = TEAMS[0], TEAMS[2]  # 64 rows a tile; Q in registers, and in shared memory
WIDE_FP8 = DECODE.families[0].heuristic(DecodeWorkload(DType.BF16, 64, rows=64, fp8_cache=True))
TOKENS = DECODE.families[0].heuristic(
    DecodeWorkload(DType.BF16, 64, fp8_cache=True, per_token_scale=True)
)

LENGTHS = (70, 33, 1, 0, 300)
HEADS = (6, 2)
TABLE = torch.randn(len(LENGTHS), HEADS[0])
HIDDEN = torch.tensor([7, 2, 5, 3, 4], dtype=torch.int32)


def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Returns another score at every index."""
    return s * 0.5 + TABLE[b, h] * ((q * 5 + k) % 11)


def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
    return ((k + 3 * q + h) % HIDDEN[b] != 0) & (q != 2)


EVERYWHERE = Semantics(score_mod=score, mask_mod=mask)


def call(asked: Requests, semantics: Semantics, **keywords: Any) -> Any:
    given = {"cache_seqlens": asked.seqlens} | semantics.keywords | keywords
    return flashsmith.decode(None, asked.q, asked.k, asked.v, **given, return_lse=True)


@pytest.mark.parametrize("cfg, n_q", [(PLAIN, 3), (PLAIN, 17), (WIDE, 17), (TALL, 25)], ids=str)
def test_functions_are_told_of_each_row_what_it_is(cfg: DecodeKernelConfig, n_q: int) -> None:
    """A work tile holds rows of several heads and queries; one of the queries sees no key."""
    asked = requests(cfg, LENGTHS, n_q, HEADS)
    for splits in (0, 2):
        o, lse = assert_right(cfg, asked, EVERYWHERE, splits=splits)
        assert not o[:, 2].any()
        assert (lse[:, :, 2] == -math.inf).all()
    assert_right(cfg, asked, EVERYWHERE, in_pages(asked, 7))


@pytest.mark.parametrize("cfg, n_q", [(SMALL, 3), (WIDE_FP8, 17), (TOKENS, 5)], ids=str)
def test_scores_of_8_bits_come_scaled(cfg: DecodeKernelConfig, n_q: int) -> None:
    """The functions get scaled scores, also where the scale is far from 1."""
    capped = Semantics(score_mod=lambda s, b, h, q, k: 0.5 * torch.tanh(s * 2), mask_mod=mask)
    per = "token" if cfg.per_token_scale else "request"
    asked = Quantised(cfg, LENGTHS, n_q, HEADS, per=per)
    for splits in (0, 3):
        asked.assert_right(cfg, EVERYWHERE, splits=splits)
    asked.assert_right(cfg, capped)


def test_they_go_with_all_else() -> None:
    """The order is that of ``attention``: scale, score_mod, softcap, ALiBi; every mask counts."""
    semantics = Semantics(
        softmax_scale=0.3, score_mod=score, mask_mod=mask, softcap=2.0, causal=True,
        window_size=(40, 0), alibi_slopes=torch.rand(6), sinks=torch.linspace(-3, 6, 6),
    )  # fmt: skip
    asked = requests(PLAIN, LENGTHS, 5, HEADS)
    for splits in (0, 3):
        assert_right(PLAIN, asked, semantics, splits=splits)
    assert_near_truth(call(asked, semantics), asked, semantics)


def test_keys_are_counted_from_the_first_of_a_request() -> None:
    """The index starts at a request's first key, behind any padding and in any slot."""
    asked = requests(PLAIN, LENGTHS, 3, HEADS)
    batch, pads = len(LENGTHS), torch.tensor([0, 5, 16, 40, 1], dtype=torch.int32)
    entries = torch.tensor([6, 0, 3, 4, 1], dtype=torch.int32)
    k, v = (t.new_full((batch + 2, 350, *t.shape[2:]), math.nan) for t in (asked.k, asked.v))
    for i, length in enumerate(LENGTHS):
        rows = slice(int(pads[i]), int(pads[i]) + length)
        k[entries[i], rows], v[entries[i], rows] = asked.k[i, :length], asked.v[i, :length]
    found = flashsmith.decode(
        None, asked.q, k, v, cache_seqlens=asked.seqlens + pads, cache_batch_idx=entries,
        cache_leftpad=pads, score_mod=score, mask_mod=mask, splits=2, return_lse=True,
    )  # fmt: skip
    assert_same_bits(found, call(asked, EVERYWHERE, splits=2))
    assert_near_truth(found, asked, EVERYWHERE)


def test_new_keys_are_among_those_that_are_counted() -> None:
    asked = requests(PLAIN, (70, 33, 5), 2, HEADS)
    expected = call(asked, EVERYWHERE, splits=2)
    new = {}
    for name, t in (("k_new", asked.k), ("v_new", asked.v)):
        rows = [own[n - 2 : n].clone() for own, n in zip(t, asked.lengths, strict=True)]
        new[name] = torch.stack(rows)
        for own, n in zip(t, asked.lengths, strict=True):
            own[n - 2 : n] = math.nan
    found = call(asked, EVERYWHERE, splits=2, cache_seqlens=asked.seqlens - 2, **new)
    assert_same_bits(found, expected)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_tells_them_the_same(causal: bool) -> None:
    """The forward kernel passes the same indices, and so does this kernel for `attention`, with and
    without a block mask."""
    asked = requests(PLAIN, (70, 33, 5, 100), 5, HEADS)
    semantics = Semantics(score_mod=score, mask_mod=mask, causal=causal)
    k, v = asked.k.nan_to_num(), asked.v.nan_to_num()
    given = {"seqused_k": asked.seqlens, "return_lse": True, **semantics.keywords}
    by_forward = flashsmith.attention(asked.q, k, v, **given)
    found = call(asked, semantics)
    for result in (by_forward, found):
        assert_near_truth(result, asked, semantics)
    named = flashsmith.attention(asked.q, k, v, config=PLAIN, **given)
    assert_same_bits(named, found)


def test_a_mask_of_blocks_means_the_same_to_a_named_kernel() -> None:
    """The block mask hides a block that is in no list, whatever mask_mod returns there."""
    q = torch.randn(1, 20, 2, 64).bfloat16()
    k, v = (torch.randn(1, 200, 2, 64).bfloat16() for _ in range(2))
    block_mask = flashsmith.create_block_mask(
        lambda b, h, q, k: (k >= 64) & (k < 150 + q), None, None, 20, 200, "cpu", BLOCK_SIZE=64
    )
    expected = flashsmith.attention(q, k, v, block_mask=block_mask)
    found = flashsmith.attention(q, k, v, block_mask=block_mask, config=PLAIN)
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=1e-2)


def test_what_functions_capture_is_read_anew_at_each_call() -> None:
    """A captured tensor with other values or another shape needs no other kernel."""
    asked = requests(PLAIN, (70, 33, 5), 3, HEADS)
    seen = torch.tensor([40, 2, 5], dtype=torch.int32)
    semantics = Semantics(mask_mod=lambda b, h, q, k: k < seen[b])
    call(asked, semantics)
    before = decode_calls._kernel_for.cache_info().misses
    for now in ([40, 2, 5], [1, 0, 3], [70, 33, 1]):
        seen.copy_(torch.tensor(now))
        assert_near_truth(call(asked, semantics), asked, semantics)
    seen = torch.tensor([40, 2, 5, 7, 8, 9], dtype=torch.int32)[::2]
    assert_near_truth(call(asked, semantics), asked, semantics)
    assert decode_calls._kernel_for.cache_info().misses == before


def test_calls_with_other_functions_are_told_apart() -> None:
    asked = requests(PLAIN, LENGTHS, 3, HEADS)
    first = Semantics(mask_mod=lambda b, h, q, k: k != 3)
    second = Semantics(score_mod=score, mask_mod=mask)
    for _ in range(2):
        for semantics in (first, second, Semantics()):
            assert_near_truth(call(asked, semantics), asked, semantics)


def test_a_compiled_call_breaks_its_graph_and_is_right() -> None:
    torch._dynamo.reset()
    asked = requests(PLAIN, LENGTHS, 3, HEADS)

    def twice(q: torch.Tensor) -> Any:
        o, lse = flashsmith.decode(
            None, q * 1, asked.k, asked.v, cache_seqlens=asked.seqlens, score_mod=score,
            mask_mod=mask, return_lse=True,
        )  # fmt: skip
        return o * 1, lse

    compiled = torch.compile(twice, backend="aot_eager")
    for _ in range(2):
        assert_same_bits(compiled(asked.q), call(asked, EVERYWHERE))


REQUIRES = torch.ones(4, requires_grad=True)


@pytest.mark.parametrize(
    "keywords, error, words",
    [
        ({"mask_mod": lambda b, h, q, k: q - k}, TracingError, "mask_mod.*returns int; expected"),
        ({"score_mod": 1}, TypeError, "score_mod is a int; expected a function of"),
        ({"mask_mod": lambda q, k: q > k}, TypeError, r"mask_mod takes \(q, k\)"),
        (
            {"score_mod": lambda s, b, h, q, k: s if q > k else -s},
            TracingError,
            r"score_mod, .*test_functions.py:\d+: its value is only known in the kernel",
        ),
        (
            {"score_mod": lambda s, b, h, q, k: s * REQUIRES[h]},
            TracingError,
            "requires a gradient",
        ),
        ({"bias": torch.ones(1)}, TypeError, "unexpected keyword argument 'bias'"),
    ],
    ids=["ints", "no function", "two arguments", "a branch", "a gradient", "a bias"],
)
def test_bad_functions_are_refused_in_words(
    keywords: dict[str, Any], error: type[Exception], words: str
) -> None:
    asked = requests(PLAIN, (20, 3))
    with pytest.raises(error, match=words):
        flashsmith.decode(None, asked.q, asked.k, asked.v, **keywords)


def test_what_is_no_tensor_is_refused_before_functions_are_traced() -> None:
    asked = requests(PLAIN, (20, 3))
    with pytest.raises(TypeError, match="q is a int"):
        flashsmith.decode(None, 3, asked.k, asked.v, mask_mod=mask)  # type: ignore[arg-type]


def test_a_request_behind_others_has_the_bits_that_it_has_alone() -> None:
    """The bits are equal if the number of splits is fixed."""
    asked = requests(PLAIN, (70, 33, 300), 3, HEADS)
    semantics = Semantics(mask_mod=lambda b, h, q, k: (k + q) % 3 != 0)
    found = call(asked, semantics, splits=3)
    again = call(asked.part([2]), semantics, splits=3)
    assert_same_bits(again, (found[0][2:], found[1][2:]))


def test_dynamo_does_not_go_through_a_call_with_functions() -> None:
    """The library keeps tensors between calls, none of which may belong to a graph, and it traces
    the caller's functions itself."""
    torch._dynamo.reset()
    asked = requests(PLAIN, (20, 3))
    bias = torch.rand(30)

    def mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + bias[k]

    def step(q: torch.Tensor) -> Any:
        given = {"cache_seqlens": asked.seqlens, "score_mod": mod}
        return flashsmith.decode(None, q * 2, asked.k, asked.v, **given) + 1

    counter = CompileCounterWithBackend("eager")
    found = torch.compile(step, backend=counter)(asked.q)
    assert torch.equal(found, step(asked.q))
    operators = {node.target for graph in counter.graphs for node in graph.graph.nodes}
    assert counter.frame_count == 2  # before the call and after it
    assert not operators & {torch.empty_like, torch.zeros, "new_empty"}
    with pytest.raises(torch._dynamo.exc.Unsupported, match="outside of graphs"):
        torch.compile(step, backend="eager", fullgraph=True)(asked.q)
