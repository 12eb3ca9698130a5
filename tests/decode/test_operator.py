"""Decode as torch operators: torch's own checks, compiled and exported graphs, and what they
write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import flashsmith
from flashsmith.flash_attn import flash_attn_with_kvcache
from flashsmith.ops import decode_operator
from flashsmith.ops.kv_cache import KVAppend
from flashsmith.runtime import AppendArguments
from flashsmith.selection.choose import forget_calls
from support.decoding import PLAIN, VARIED, Requests, in_pages, requests
from support.fp8_caches import FP8

OPERATORS = torch.ops.flashsmith
NEW = 2


@pytest.fixture(autouse=True)
def _fresh_graphs() -> None:
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], backend: Any = "aot_eager") -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, backend=backend)


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def paged(
    lengths: tuple[int, ...] = (20, 3), page_size: int = 8, n_q: int = 1
) -> tuple[Requests, dict[str, torch.Tensor]]:
    """Returns requests in pages that have room for new keys, and the tensors that locate them."""
    asked = requests(PLAIN, lengths, n_q)
    placed = in_pages(replace(asked, lengths=tuple(n + NEW for n in lengths)), page_size)
    assert placed.block_table is not None
    where = {"cache_seqlens": asked.seqlens, "block_table": placed.block_table}
    return Requests(asked.q, placed.k, placed.v, lengths), where


def new_keys(batch: int = 2) -> dict[str, torch.Tensor]:
    return {name: torch.randn(batch, NEW, 2, 64).bfloat16() for name in ("k_new", "v_new")}


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Checks all bits; NaN in rows that no call has written is equal."""
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


def known(lengths: tuple[int, ...] = (20, 3)) -> tuple[Requests, dict[str, torch.Tensor]]:
    """Returns ``paged`` without NaN and negative page numbers, because torch compares the
    tensors."""
    asked, where = paged(lengths)
    where["block_table"].clamp_(min=0)
    return Requests(asked.q, asked.k.nan_to_num(), asked.v.nan_to_num(), lengths), where


# The schema's test comes first, because torch cannot compare FP8 tensors there.
_CHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


@pytest.mark.parametrize("fp8", [False, True], ids=["16 bits", "8 bits"])
@pytest.mark.parametrize("out", [False, True], ids=["new o", "out"])
@pytest.mark.parametrize("appends", [False, True], ids=["", "append"])
def test_torch_finds_no_fault_in_the_operators(appends: bool, out: bool, fp8: bool) -> None:
    """The checks cover the schema, mutation and aliases, fake tensors, and dispatch through
    autograd."""
    asked, where = known()
    if fp8:
        asked = replace(asked, k=asked.k.to(FP8), v=asked.v.to(FP8))
        where |= {"k_scale": torch.rand(2) + 1, "v_scale": torch.rand(2, 2) + 1}
    keywords: dict[str, Any] = {**where, "causal": True, "window_left": 9}
    if appends:
        angles = torch.randn(40, 8).bfloat16()
        keywords |= new_keys() | {"rotary_cos": angles, "rotary_sin": angles}
    operator = getattr(OPERATORS, "decode" + "_append" * appends + "_out" * out)
    written = [torch.empty_like(asked.q)] * out
    for with_lse in (False, True):
        keywords["return_lse"] = with_lse
        tensors = asked.q, asked.k, asked.v, *written
        torch.library.opcheck(operator, tensors, keywords, test_utils=_CHECKS[fp8:])


EVERYTHING: dict[str, Any] = {
    "causal": True, "window_size": (190, 0), "softcap": 2.0, "softmax_scale": 0.3, "splits": 2,
    "alibi_slopes": torch.rand(4), "sinks": torch.rand(4).bfloat16(), "return_lse": True,
}  # fmt: skip


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_step_has_the_bits_of_a_direct_one(backend: str) -> None:
    """The step appends and attends to the new keys, and passes every argument of the schema."""
    asked, where = paged((300, 3), n_q=2)
    new = new_keys()
    angles = {name: torch.randn(320, 8).bfloat16() for name in ("rotary_cos", "rotary_sin")}

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Any:
        o, lse = flashsmith.decode(
            PLAIN, q, k, v, **given, **EVERYTHING, **angles, rotary_interleaved=False
        )
        given["cache_seqlens"] += NEW
        o = flashsmith.decode(None, o, k, v, **where | {"cache_seqlens": given["cache_seqlens"]})
        return o, lse

    results, caches = [], []
    for function in (step, compiled(step, backend)):
        k, v, lengths = asked.k.clone(), asked.v.clone(), asked.seqlens
        given = where | new | {"cache_seqlens": lengths}
        results.append(function(asked.q, k, v, **given))
        caches.append((k, v, lengths))
    assert not torch.equal(caches[0][0].isnan(), asked.k.isnan())
    for found, expected in zip((*results[1], *caches[1]), (*results[0], *caches[0]), strict=True):
        assert_same(found, expected)


def test_entries_padding_and_a_configuration_arrive() -> None:
    cfg = VARIED[0]
    asked = requests(cfg, (20, 33, 9), behind=0)
    given = {
        "cache_batch_idx": ints(2, 0, 1), "cache_leftpad": ints(3, 0, 8),
        "cache_seqlens": ints(20, 30, 31), "splits": 1,
    }  # fmt: skip
    k, v = asked.k.nan_to_num(), asked.v.nan_to_num()
    call = compiled(lambda cfg, q: flashsmith.decode(cfg, q, k, v, **given))
    expected = flashsmith.decode(cfg, asked.q, k, v, **given)
    assert torch.equal(call(cfg, asked.q), expected)
    by_name, _ = OPERATORS.decode(asked.q, k, v, **given, config=str(cfg))
    assert torch.equal(by_name, expected)


def test_a_cache_of_8_bits_arrives_with_its_scales() -> None:
    asked = requests(PLAIN, (20, 3), behind=0)
    k, v = (t.to(FP8) for t in (asked.k, asked.v))
    given = {
        "cache_seqlens": asked.seqlens,
        "k_scale": torch.tensor([0.5, 2.0]), "v_scale": torch.tensor([[1.0, 3.0], [0.25, 5.0]]),
    }  # fmt: skip
    expected = flashsmith.decode(None, asked.q, k, v, **given)
    call = compiled(lambda q: flashsmith.decode(None, q, k, v, **given))
    assert torch.equal(call(asked.q), expected)
    of_tokens = given | {"v_scale": torch.rand(2, k.shape[1], 2) + 1}
    call_with = compiled(lambda q: flashsmith.decode(None, q, k, v, **of_tokens))
    assert torch.equal(call_with(asked.q), flashsmith.decode(None, asked.q, k, v, **of_tokens))
    for name in ("k_scale", "v_scale"):
        others = given | {name: None}
        assert not torch.equal(flashsmith.decode(None, asked.q, k, v, **others), expected)


def test_what_appends_nothing_writes_to_no_cache() -> None:
    """A graph would copy the cache if the schema said that it is mutated."""
    assert not OPERATORS.decode.default._schema.is_mutable
    assert "Tensor k_cache, Tensor v_cache" in str(OPERATORS.decode_out.default._schema)


@contextmanager
def counted_appends() -> Iterator[list[int]]:
    """Yields a list of the addresses of K caches to which new keys are appended."""
    places: list[int] = []
    arguments = KVAppend.arguments

    def counted(*given: Any) -> AppendArguments:
        found = arguments(*given)
        places.append(found.k_cache.data_ptr())
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(KVAppend, "arguments", counted)
        yield places


@pytest.mark.parametrize("fp8", [False, True], ids=["16 bits", "8 bits"])
def test_inductor_appends_once_and_in_place(fp8: bool) -> None:
    """No copy of the cache is made to write one row."""
    asked, where = paged()
    k, v = asked.k, asked.v
    if fp8:
        k, v = (t.to(FP8) for t in (k, v))
        where |= {"k_scale": torch.tensor([0.5, 2.0])}
    step = compiled(lambda q, k, v, **given: flashsmith.decode(None, q, k, v, **given), "inductor")
    for _ in range(2):
        new, own = new_keys(), (k.clone(), v.clone())
        expected = flashsmith.decode(None, asked.q, *own, **where, **new)
        forget_calls()  # a call that repeats one appends without what is counted here
        with counted_appends() as places:
            assert torch.equal(step(asked.q, k, v, **where, **new), expected)
        assert places == [k.data_ptr()]
        assert_same(k.float(), own[0].float())
        assert_same(v.float(), own[1].float())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_keys_and_values_may_be_parts_of_one_tensor(backend: str) -> None:
    """The call writes to both parts, while torch sees one tensor."""
    asked, where = paged()
    new = new_keys()

    def step(q: torch.Tensor, both: torch.Tensor, **given: Any) -> Any:
        k, v = both.unbind(1)
        return flashsmith.decode(None, q, k, v, **given, causal=True)

    both = torch.stack([asked.k, asked.v], dim=1)
    own = both.clone()
    expected = step(asked.q, own, **where, **new)
    found = compiled(step, backend)(asked.q, both, **where, **new)
    assert torch.equal(found, expected)
    assert_same(both, own)


def test_requests_and_pages_do_not_compile_again() -> None:
    """One compilation is for the first step, and one serves all other steps."""
    counter = CompileCounterWithBackend("aot_eager")
    step = compiled(
        lambda q, k, v, **given: flashsmith.decode(None, q, k, v, **given, causal=True), counter
    )
    for lengths in ((20, 3), (30, 4, 17), (9, 60, 33, 1), (100, 2, 3, 4, 5)):
        asked, where = paged(lengths)
        given = where | new_keys(len(lengths))
        k, v = asked.k.clone(), asked.v.clone()
        expected = flashsmith.decode(None, asked.q, k, v, **given, causal=True)
        assert torch.equal(step(asked.q, asked.k, asked.v, **given), expected)
        assert_same(asked.k, k)
    assert counter.frame_count == 2


def test_a_length_for_all_may_grow_without_compiling_again() -> None:
    """A loop over tokens calls FlashAttention's function with a length that grows."""
    counter = CompileCounterWithBackend("aot_eager")
    asked = requests(PLAIN, (12, 12), behind=20)
    new = list(new_keys().values())

    def step(k: torch.Tensor, v: torch.Tensor, length: int) -> Any:
        return flash_attn_with_kvcache(
            asked.q, k, v, *new, cache_seqlens=length, causal=True, return_softmax_lse=True
        )

    k, v = asked.k.clone(), asked.v.clone()
    function = compiled(step, counter)
    for length in (12, 14, 16, 18):
        for found, expected in zip(
            function(k, v, length), step(asked.k, asked.v, length), strict=True
        ):
            assert torch.equal(found, expected)
        assert_same(k, asked.k)
        assert_same(v, asked.v)
    assert counter.frame_count == 2


def test_a_compiled_call_writes_into_out() -> None:
    asked, where = paged()
    wide = torch.zeros(2, 1, 4, 2 * PLAIN.d_head).bfloat16()
    function = compiled(
        lambda out, **given: flashsmith.decode(
            None, asked.q, asked.k, asked.v, out=out[..., : PLAIN.d_head], **given
        )
    )
    for new in ({}, new_keys()):
        result = function(wide, **where, **new)
        expected = flashsmith.decode(None, asked.q, asked.k, asked.v, **where, **new)
        assert torch.equal(result, expected)
        assert torch.equal(wide[..., : PLAIN.d_head], expected)
        assert not wide[..., PLAIN.d_head :].any()


def test_exported_programs_take_other_tables() -> None:
    class Decode(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any, lengths: Any, table: Any) -> Any:
            return flashsmith.decode(None, q, k, v, cache_seqlens=lengths, block_table=table)

    batch, pages = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("pages", max=512)
    shapes = ({0: batch}, {0: torch.export.Dim("all")}, {0: torch.export.Dim("all")})
    asked, where = paged()
    arguments = (asked.q, asked.k, asked.v, *where.values())
    shapes = (*shapes, {0: batch}, {0: batch, 1: pages})
    program = torch.export.export(Decode(), arguments, dynamic_shapes=shapes)
    assert "flashsmith.decode.default" in str(program.graph)
    for lengths in ((20, 3), (0, 50, 17)):
        asked, where = paged(lengths)
        expected = flashsmith.decode(None, asked.q, asked.k, asked.v, **where)
        found = program.module()(asked.q, asked.k, asked.v, *where.values())
        assert torch.equal(found, expected)


def test_fake_tensors_have_the_shapes_of_results() -> None:
    with torch._subclasses.FakeTensorMode():
        q, k = torch.empty(3, 2, 4, 64).half(), torch.empty(9, 16, 2, 64).half()
        table = torch.empty(3, 5, dtype=torch.int32)
        v = torch.empty(9, 16, 2, 24).half()
        o, lse = flashsmith.decode(
            None, q, k, v, block_table=table, cache_seqlens=7, return_lse=True
        )
        assert o.shape == (3, 2, 4, 24) and o.dtype == torch.float16
        assert lse.shape == (3, 4, 2) and lse.dtype == torch.float32


def test_calls_that_nothing_traces_do_not_pass_through_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A torch operator would take more time than the rest of the call on the host."""
    monkeypatch.setattr("flashsmith.ops.decode.call_decode_operator", None)
    monkeypatch.delattr(decode_operator, "run")
    asked, where = paged()
    flashsmith.decode(None, asked.q, asked.k, asked.v, **where, **new_keys())


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no room": ({"cache_seqlens": ints(20, 31)}, "cache_seqlens has 31; expected 0 to 30"),
    "no lengths": ({"cache_seqlens": None}, "cache_seqlens is None"),
    "k without v": ({"v_new": None}, "k_new and v_new go together"),
    "k of other requests": (
        {name: torch.ones(1, 3, 2, 64).bfloat16() for name in ("k_new", "v_new")},
        "k_new has batch size 1",
    ),
    "to be measured": ({"benchmark": True}, "benchmark is True"),
    "gradients": ({"q": torch.ones(2, 1, 4, 64, requires_grad=True)}, "q requires a gradient"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_of_a_compiled_call_is_refused_in_words(name: str) -> None:
    changed, words = BAD[name]
    asked, where = paged()
    k = asked.k.clone()
    given = {"q": asked.q} | where | new_keys() | changed

    def step(q: torch.Tensor, k: torch.Tensor, **others: Any) -> Any:
        return flashsmith.decode(None, q, k, asked.v, **others)

    with pytest.raises(Exception, match=words):
        compiled(step)(given.pop("q"), k, **given)
    assert_same(k, asked.k)
