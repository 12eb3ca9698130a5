"""Packed queries over pages: ``flash_attn_varlen_func`` and others with a block_table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.varlen import AuxRequest, varlen_attn

from flashsmith.configs import DType
from flashsmith.configs.family import Family
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.configs.workload import Workload
from flashsmith.flash_attn import flash_attn_varlen_func
from flashsmith.flash_attn.flash_attn_interface import _flash_attn_varlen_forward
from flashsmith.integrations import pages, torch_sdpa
from flashsmith.ops.kv_cache import KVCache
from support.decoding import WILD
from support.paged import D_HEAD, FEW, LENGTHS_K, MANY, paged

EITHER_WAY = pytest.mark.parametrize("n_q", [MANY, FEW], ids=["many", "few"])
SEMANTICS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window_size": (20, 2), "softcap": 4.0},
    {"causal": True, "alibi_slopes": torch.rand(5, 4, generator=torch.Generator().manual_seed(1))},
    {"sinks": torch.tensor([0.5, -1.0, 0.1, 2.0]), "softmax_scale": 0.2},
]


@pytest.mark.parametrize("semantics", SEMANTICS, ids=lambda s: "+".join(s) or "plain")
@EITHER_WAY
def test_results_are_those_of_the_reference(
    n_q: tuple[int, ...], semantics: dict[str, Any]
) -> None:
    given = paged(n_q, spare=2)
    given.assert_right(*given.attend(**semantics), **semantics)


@EITHER_WAY
def test_the_size_and_order_of_pages_change_no_bit(n_q: tuple[int, ...]) -> None:
    """All page sizes of a group are read in place by the forward, or all are copied."""
    ways = [(16, 48, 256), (1, 5, 24)] if n_q == MANY else [(1, 7, 64)]
    for page_sizes in ways:
        found = []
        for page_size in page_sizes:
            torch.manual_seed(0)
            given = paged(n_q, page_size=page_size)
            found.append(given.attend(causal=True))
        given.assert_right(*found[0], causal=True)
        for o, lse in found[1:]:
            assert torch.equal(o, found[0][0]) and torch.equal(lse, found[0][1])


def test_a_prompt_in_chunks_is_as_one_prefill() -> None:
    """Each chunk sees the keys of the chunks before it; the last chunk is for ``decode``."""
    n = 70
    whole = paged((n,), (n,), page_size=8)
    found = []
    for begin, end in ((0, 33), (33, 66), (66, n)):
        known = torch.tensor([0, end], dtype=torch.int32)
        offsets = torch.tensor([0, end - begin], dtype=torch.int32)
        chunk = replace(whole, q=whole.q[begin:end], cu_seqlens_q=offsets, cu_seqlens_k=known)
        found.append(chunk.attend(causal=True, lengths=(end - begin, end)))
    o, lse = torch.cat([o for o, _ in found]), torch.cat([lse for _, lse in found], 1)
    whole.assert_right(o, lse, causal=True)


LAYOUTS: dict[str, tuple[bool, Callable[[torch.Tensor], torch.Tensor]]] = {
    "heads before rows": (True, lambda t: t.transpose(1, 2).contiguous().transpose(1, 2)),
    "a slice": (True, lambda t: torch.stack([t, t], 1).unbind(1)[1]),
    "rows with gaps": (False, lambda t: t.repeat_interleave(2, -1)[..., ::2]),
    "odd strides": (False, lambda t: torch.cat([t, t[..., :1]], -1)[..., :D_HEAD]),
    "an odd beginning": (False, lambda t: odd_beginning(t)),
}


def odd_beginning(t: torch.Tensor) -> torch.Tensor:
    return torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape)


@pytest.mark.parametrize("layout", LAYOUTS)
@EITHER_WAY
def test_pages_are_read_in_place_where_their_layout_allows(
    n_q: tuple[int, ...], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place, lay = LAYOUTS[layout]
    given = paged(n_q)
    expected = given.attend(causal=True)
    copies = []
    monkeypatch.setattr(KVCache, "gathered", recording(KVCache.gathered, copies))
    laid = replace(given, k=lay(given.k), v=lay(given.v), q=given.q[..., ::1])
    laid.assert_right(*(found := laid.attend(causal=True)), causal=True)
    assert not copies if in_place else copies
    assert not in_place or torch.equal(found[0], expected[0])


def recording(function: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    def recorded(*arguments: Any, **keywords: Any) -> Any:
        calls.append(arguments)
        return function(*arguments, **keywords)

    return recorded


@pytest.mark.parametrize(
    ("family", "copies"), [(SM80_FORWARD, 1), (SM90_FORWARD, 0)], ids=["sm80", "sm90"]
)
def test_pages_are_copied_for_configurations_that_do_not_read_them(
    family: Family, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(KVCache, "gathered", recording(KVCache.gathered, made))
    given = paged(MANY)
    config = family.heuristic(Workload.square(DType.BF16, D_HEAD, 128))
    given.assert_right(*given.attend(causal=True, config=config), causal=True)
    assert len(made) == copies


def test_what_is_copied_is_what_the_longest_request_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given, found = paged(MANY, page_size=5), []
    gathered = KVCache.gathered

    def recorded(*arguments: Any) -> Any:
        found.append(gathered(*arguments))
        return found[-1]

    monkeypatch.setattr(KVCache, "gathered", recorded)
    given.attend()
    ((k, v),) = found
    assert k.shape == v.shape == (len(MANY), 70, 2, D_HEAD)  # 14 pages


@pytest.mark.parametrize("sizes", [{"d_head": 40}, {"d_v": 24}, {"d_head": 20}], ids=str)
@EITHER_WAY
def test_heads_of_any_size(n_q: tuple[int, ...], sizes: dict[str, int]) -> None:
    given = paged(n_q, **sizes)
    given.assert_right(*given.attend())


@EITHER_WAY
def test_out_is_written_where_sequences_are(n_q: tuple[int, ...]) -> None:
    given = paged(n_q, spare=2)
    expected, _ = given.attend()
    out = torch.full_like(given.q, 7.0)
    found, _ = given.attend(out=out)
    assert found is out and (out[:2] == 7).all() and (out[-2:] == 7).all()
    assert torch.equal(out[2:-2], expected[2:-2])


@pytest.mark.parametrize("n_q", [MANY, (0, 0, 0, 0, 1), (0, 0, 0, 0, 0)], ids=str)
def test_requests_without_keys_or_queries(n_q: tuple[int, ...]) -> None:
    given = paged(n_q, (0, 0, 0, 0, 0))
    o, lse = given.attend(causal=True)
    assert (o == 0).all() and (lse == -math.inf).all() and o.shape == given.q.shape


@pytest.mark.parametrize("n", [4, 40])
def test_no_requests_have_no_result(n: int) -> None:
    given = paged((), ())
    q = torch.zeros(n, 4, D_HEAD, dtype=given.k.dtype)
    assert replace(given, q=q).attend(lengths=(n, 70))[0].shape == q.shape


# ---- numbers on the device ----


@pytest.mark.parametrize("page", [-1, WILD, 1 << 30])
def test_a_page_that_is_nowhere_is_not_followed(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wild page affects no other request, though no check finds it, as on a GPU."""
    given = paged(MANY)
    expected, _ = given.attend()
    given.k[0], given.v[0], given.k[-1], given.v[-1] = (given.k[given.table[0, 0]] * 0,) * 4
    given.table[4, 1] = page
    monkeypatch.setattr(pages, "may_look_at", lambda t: False)
    o, _ = given.attend()
    others = given.cu_seqlens_q[4]
    assert o.isfinite().all()
    assert torch.equal(o[:others], expected[:others]) and not torch.equal(o, expected)


@EITHER_WAY
def test_compiled_graphs_wait_for_no_numbers(n_q: tuple[int, ...]) -> None:
    """A graph is traced without the device's numbers, so that it copies pages."""
    given = paged(n_q)
    attend = torch.compile(
        lambda *arguments: flash_attn_varlen_func(
            *arguments, block_table=given.table, causal=True, return_lse=True
        ),
        fullgraph=True, backend="eager",
    )  # fmt: skip
    given.assert_right(*attend(*given.arguments), causal=True)


def test_nothing_waits_for_the_device_before_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(cfg: None, q: torch.Tensor, *cache: torch.Tensor, **_: Any) -> Any:
        return torch.empty_like(q), q.new_empty(len(q), q.shape[2], q.shape[1])

    monkeypatch.setattr(pages, "decode", decode)
    monkeypatch.setattr(pages, "may_look_at", lambda t: False)
    given = paged(FEW, spare=2)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = replace(
            given,
            **{f.name: mode.from_tensor(t) for f in fields(given)
               if isinstance(t := getattr(given, f.name), torch.Tensor)},
        )  # fmt: skip
        o, lse = fake.attend(out=torch.empty_like(fake.q))
    assert o.shape == given.q.shape and lse.shape == (4, len(given.q))


# ---- other functions ----


@EITHER_WAY
def test_the_low_level_function_takes_lengths_beside_places(n_q: tuple[int, ...]) -> None:
    given = paged(n_q)
    expected = given.attend(window_size=(20, 3))
    q, k, v, cu_q, cu_k, *longest = given.arguments
    o, lse, *_ = _flash_attn_varlen_forward(
        q, k, v, cu_q, torch.full_like(cu_k, 1 << 20), *longest, 0.0, None, False, 20, 3,
        block_table=given.table, seqused_k=given.in_a_row.seqlens, num_splits=1,
    )  # fmt: skip
    given.assert_right(o, lse, window_size=(20, 3))
    assert n_q == FEW or torch.equal(o, expected[0])


@EITHER_WAY
def test_varlen_attn_of_torch(n_q: tuple[int, ...]) -> None:
    override = torch_sdpa.override("CPU")
    given = paged(n_q)
    try:
        o, lse = varlen_attn(
            given.q, given.k, given.v, given.cu_seqlens_q, None, max(n_q), max(LENGTHS_K),
            return_aux=AuxRequest(lse=True), window_size=(-1, 0), enable_gqa=True,
            seqused_k=given.in_a_row.seqlens, block_table=given.table,
        )  # fmt: skip
        q = given.q.clone().requires_grad_()
        with pytest.raises(NotImplementedError, match="block_table is given and a gradient"):
            torch.ops.aten._flash_attention_forward(
                q, *given.arguments[1:], 0.0, True, False, block_table=given.table
            )
    finally:
        override.remove()
    given.assert_right(o, lse, causal=True)
