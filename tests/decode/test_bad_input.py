"""The calls that ``flashsmith.decode`` refuses, and the messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.configs import KernelId
from flashsmith.jit import Target
from flashsmith.ops import decode_calls
from flashsmith.runtime import CallArgs, DecodeTensors, find_decode
from support.bad_input import MARK, Case, assert_refused, case
from support.decoding import PLAIN, requests


def arguments() -> dict[str, Any]:
    asked = requests(PLAIN, (20, 3, 9), heads=(4, 2), behind=0)
    o = torch.full_like(asked.q, MARK)
    return {"q": asked.q, "k": asked.k, "v": asked.v, "o": o, "cache_seqlens": asked.seqlens}


def given(**changed: Any) -> Any:
    return lambda _: changed


FORWARD = flashsmith.configs.get_kernel_configs("prog")[0]


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


BAD: list[Case] = [
    case("q of no tensor", given(q=3), TypeError, "q is a int"),
    case("q of three dimensions", lambda a: {"q": a["q"][0]}, ValueError, "q has 3 dimensions"),
    case("q of float32", lambda a: {"q": a["q"].float()}, TypeError, "q has dtype", "float32"),
    case("k of another dtype", lambda a: {"k": a["k"].half()}, TypeError, "k", "float16"),
    case(
        "heads that do not share", lambda a: {"q": a["q"][:, :, :3], "o": None}, ValueError, "heads"
    ),
    case("v of other heads", lambda a: {"v": a["v"][:, :, :1]}, ValueError, "v_cache", "k_cache"),
    case(
        "d_head of 60",
        lambda a: {"q": a["q"][..., :60], "k": a["k"][..., :60], "o": None},
        ValueError,
        "multiples of 8",
    ),
    case(
        "other entries than requests",
        lambda a: {"k": a["k"][:2], "v": a["v"][:2]},
        ValueError,
        "k_cache has 2 entries",
        "batch size 3",
    ),
    case(
        "gaps in rows",
        lambda a: {"k": a["k"].transpose(1, 3).contiguous().transpose(1, 3)},
        ValueError,
        "k_cache has stride",
    ),
    case(
        "lengths of int64",
        given(cache_seqlens=torch.tensor([1, 2, 3])),
        TypeError,
        "cache_seqlens has dtype torch.int64",
        "torch.int32",
    ),
    case(
        "lengths of others",
        given(cache_seqlens=ints(1, 2)),
        ValueError,
        "cache_seqlens has shape (2,)",
        "(batch)",
    ),
    case("a length of a float", given(cache_seqlens=2.5), TypeError, "cache_seqlens is a float"),
    case(
        "lengths beyond the rows",
        given(cache_seqlens=ints(1, 21, 3)),
        ValueError,
        "cache_seqlens has 21",
        "0 to 20",
    ),
    case(
        "lengths beyond a table",
        given(cache_seqlens=ints(1, 41, 3), block_table=ints([0, 1], [1, 2], [2, 0])),
        ValueError,
        "cache_seqlens has 41",
        "0 to 40",
    ),
    case("a length below 0", given(cache_seqlens=-1), ValueError, "cache_seqlens is -1"),
    case(
        "a length of no int32",
        given(cache_seqlens=2**40),
        ValueError,
        "cache_seqlens is 1099511627776",
        "0 to 20",
    ),
    case(
        "an entry that is nowhere",
        given(cache_batch_idx=ints(0, 3, 1)),
        ValueError,
        "cache_batch_idx has 3",
        "0 to 2",
    ),
    case(
        "a page that is nowhere",
        given(block_table=ints([0], [3], [1])),
        ValueError,
        "block_table has page 3 for request 1",
        "0 to 2",
    ),
    case(
        "a table of one dimension",
        given(block_table=ints(0, 1, 2)),
        ValueError,
        "block_table has shape (3,)",
        "(batch, pages)",
    ),
    case(
        "a table and entries",
        given(block_table=ints([0], [1], [1]), cache_batch_idx=ints(0, 1, 2)),
        ValueError,
        "cache_batch_idx",
        "block_table",
    ),
    case(
        "padding beyond the length",
        given(cache_leftpad=ints(0, 4, 0)),
        ValueError,
        "cache_leftpad has 4",
        "3 rows",
    ),
    case("splits below 0", given(splits=-1), ValueError, "splits is -1", "0 to 1024"),
    case("splits of a float", given(splits=2.0), ValueError, "splits is 2.0"),
    case("a window of one side", given(window_size=(3,)), TypeError, "window_size"),
    case("a softcap below 0", given(softcap=-1.0), ValueError, "softcap is -1.0"),
    case(
        "slopes of other heads",
        given(alibi_slopes=torch.rand(3)),
        ValueError,
        "alibi_slopes has shape (3)",
    ),
    case(
        "slopes of float16",
        given(alibi_slopes=torch.rand(4).half()),
        TypeError,
        "alibi_slopes has dtype float16",
    ),
    case("sinks of float64", given(sinks=torch.rand(4).double()), TypeError, "sinks has dtype"),
    case(
        "slopes with gaps",
        given(alibi_slopes=torch.rand(8)[::2]),
        ValueError,
        "alibi_slopes",
        "contiguous",
    ),
    case(
        "lengths with gaps",
        given(cache_seqlens=ints(1, 2, 3, 4, 5, 6)[::2]),
        ValueError,
        "cache_seqlens",
        "contiguous",
    ),
    case(
        "a table with gaps",
        given(block_table=ints([0, 1, 2, 0], [1, 0, 2, 0], [2, 0, 1, 0])[:, ::2]),
        ValueError,
        "block_table",
        "contiguous rows",
    ),
    case("a scale of 16 bits", given(k_scale=torch.ones(1)), ValueError, "k_scale", "has 16 bits"),
    case(
        "rows that begin within 16 bytes",
        lambda a: {"k": torch.zeros(3, 20, 2, 68).bfloat16()[..., :64]},
        ValueError,
        "k_cache has",
        "stride",
    ),
    case(
        "more rows than can be counted",
        lambda a: {n: a[n][:, :1].expand(3, 2**30, 2, 64) for n in "kv"},
        ValueError,
        "k_cache has shape",
        "2^30",
    ),
    case("sinks of other heads", given(sinks=torch.rand(3)), ValueError, "sinks has shape (3)"),
    case("causal of an int", given(causal=1), TypeError, "causal is 1"),
    case("a scale of a text", given(softmax_scale="1"), TypeError, "softmax_scale is a str"),
    case("a softcap of a text", given(softcap="1"), TypeError, "softcap is a str"),
    case("a scale of 0", given(softmax_scale=0), ValueError, "softmax_scale is 0"),
    case(
        "a configuration of the forward",
        given(cfg=FORWARD),
        TypeError,
        "cfg",
        "FlashDecodeKernelConfig",
    ),
    case(
        "a configuration of another dtype",
        given(cfg=PLAIN.for_dtype(flashsmith.DType.FP16)),
        TypeError,
        "float16",
    ),
    case("o over q", lambda a: {"o": a["q"]}, ValueError, "o shares memory with q"),
    case("o of another shape", lambda a: {"o": a["o"][:, :, :2]}, ValueError, "o has shape"),
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_bad_input_is_refused_in_words(bad: Case) -> None:
    def decode(q: Any, k: Any, v: Any, o: Any, cfg: Any = None, **keywords: Any) -> None:
        flashsmith.decode(cfg, q, k, v, out=o, **keywords)

    assert_refused(decode, arguments(), bad)


@pytest.mark.parametrize("bad", [bad for bad in BAD if bad.name != "o over q"], ids=str)
def test_nobody_waits_for_a_kernel_to_be_built_that_the_call_is_not_for(
    bad: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad arguments are refused before a kernel is built, except for overlapping memory, which only
    the library sees."""
    monkeypatch.setattr(decode_calls, "_kernel_for", lambda *_: pytest.fail("a kernel was asked"))
    given = arguments()
    given |= bad.change(given)
    q, k, v, out = (given.pop(name) for name in "qkvo")
    with pytest.raises(bad.error) as caught:
        flashsmith.decode(given.pop("cfg", None), q, k, v, out=out, **given)
    assert all(word in str(caught.value) for word in bad.words), caught.value


@pytest.mark.parametrize("bad", [bad for bad in BAD if bad.name != "o over q"], ids=str)
def test_a_compiled_call_is_refused_in_the_same_words(bad: Case) -> None:
    """An output over q is the exception: a compiled call writes to memory of its own and copies."""
    torch._dynamo.reset()
    given = arguments()
    given |= bad.change(given)
    cfg = given.pop("cfg", None)

    def decode(q: Any, k: Any, v: Any, o: Any, **keywords: Any) -> Any:
        return flashsmith.decode(cfg, q, k, v, out=o, **keywords)

    with pytest.raises(Exception) as caught:
        torch.compile(decode, fullgraph=True, backend="aot_eager")(**given)
    assert all(word in str(caught.value) for word in bad.words), caught.value


def test_one_length_for_all_is_looked_at_on_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The length is a Python int, so the check needs no copy from the GPU."""
    monkeypatch.setattr("flashsmith.ops.kv_cache.may_look_at", lambda _: False)
    a = arguments()
    for length in (-1, 21, 2**31, 2**40):
        with pytest.raises(ValueError, match=f"cache_seqlens is {length}; expected 0 to 20"):
            flashsmith.decode(None, a["q"], a["k"], a["v"], cache_seqlens=length)
    with pytest.raises(
        ValueError, match=r"cache_seqlens is 19; expected 0 to 18.* but 2 for k_new"
    ):
        new = {"k_new": a["k"][:, :2], "v_new": a["v"][:, :2]}
        flashsmith.decode(None, a["q"], a["k"], a["v"], cache_seqlens=19, **new)


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"top_left": True}, "top_left is true"),
        ({"seqused_q": ints(1)}, "cu_seqlens or seqused_q were passed"),
        ({"bias": torch.ones(1, 1, 1, 20).bfloat16()}, "bias was passed"),
    ],
    ids=["the other diagonal", "lengths of queries", "a bias"],
)
def test_a_kernel_refuses_what_it_would_not_heed(changed: dict[str, Any], words: str) -> None:
    asked = requests(PLAIN, (20,), heads=(2, 1), behind=0)
    extras = CallArgs()._replace(**changed)
    kernel = find_decode(KernelId(PLAIN), Target.emulator())
    tensors = DecodeTensors(asked.q, asked.k, asked.v, torch.empty_like(asked.q))
    with pytest.raises(ValueError, match=words):
        kernel.plan(tensors, extras=extras)
    with pytest.raises(ValueError, match=words):
        kernel(tensors, 1.0, extras=extras)
