"""FlashAttention-3's functions: their signatures, and results equal to FlashAttention-2's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashsmith import flash_attn as fa2
from flashsmith.flash_attn import fa3

DESCALE = "q_descale=None, k_descale=None, v_descale=None"
TAIL = (
    f"softmax_scale=None, causal=False, qv=None, {DESCALE}, window_size=(-1, -1), "
    "attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, "
    "sm_margin=0, return_attn_probs=False"
)
LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
SIGNATURES = {
    "flash_attn_func": f"q, k, v, {TAIL}",
    "flash_attn_varlen_func": f"q, k, v, {LENGTHS}, seqused_q=None, seqused_k=None, {TAIL}",
    "flash_attn_with_kvcache": (
        "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, "
        "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None, "
        "cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, "
        f"{DESCALE}, softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=0, "
        "softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, num_splits=0, "
        "pack_gqa=None, sm_margin=0, return_softmax_lse=False"
    ),
}
OPTIONS = {"softmax_scale": 0.3, "causal": True, "window_size": (20, 0), "softcap": 7.0}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_those_of_flash_attention_3(name: str) -> None:
    parameters = inspect.signature(getattr(fa3, name)).parameters.values()
    plain = [p.replace(annotation=p.empty) for p in parameters]
    assert ", ".join(map(str, plain)) == SIGNATURES[name]


def rows(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes).half()


@pytest.mark.usefixtures("by_reference")
def test_it_computes_what_flash_attention_2_does() -> None:
    q, k, v = rows(2, 9, 4, 40), rows(2, 30, 2, 40), rows(2, 30, 2, 40)
    expected = fa2.flash_attn_func(q, k, v, **OPTIONS, return_attn_probs=True)
    found = fa3.flash_attn_func(
        q, k, v, **OPTIONS, num_splits=3, pack_gqa=True, sm_margin=8, return_attn_probs=True
    )
    assert len(found) == 2 and all(map(torch.equal, found, expected[:2]))
    assert torch.equal(fa3.flash_attn_func(q, k, v, **OPTIONS), found[0])


@pytest.mark.usefixtures("by_reference")
def test_packed_sequences_may_use_fewer_rows() -> None:
    q, k, v = rows(14, 4, 64), rows(30, 2, 64), rows(30, 2, 64)
    offsets_q, offsets_k = (torch.tensor(offsets).int() for offsets in ([0, 5, 14], [0, 11, 30]))
    arguments: Any = (q, k, v, offsets_q, offsets_k, 9, 19)
    out, lse = fa3.flash_attn_varlen_func(*arguments, **OPTIONS, return_attn_probs=True)
    expected = fa2.flash_attn_varlen_func(*arguments, **OPTIONS, return_attn_probs=True)
    assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])
    used = torch.tensor([11, 10]).int()
    shorter = fa3.flash_attn_varlen_func(*arguments, seqused_k=used, **OPTIONS)
    assert torch.equal(shorter[:5], out[:5]) and not torch.equal(shorter[5:], out[5:])


def test_new_keys_enter_the_pages_of_a_cache() -> None:
    cache = rows(6, 16, 2, 64), rows(6, 16, 2, 64)
    others = tuple(t.clone() for t in cache)
    q, k, v = rows(2, 1, 4, 64), rows(2, 1, 2, 64), rows(2, 1, 2, 64)
    table, lengths = torch.tensor([[4, 1], [0, 5]]).int(), torch.tensor([17, 3]).int()
    options: Any = {"k": k, "v": v, "cache_seqlens": lengths, "causal": True}
    options["return_softmax_lse"] = True
    found = fa3.flash_attn_with_kvcache(q, *cache, page_table=table, num_splits=2, **options)
    expected = fa2.flash_attn_with_kvcache(q, *others, block_table=table, num_splits=2, **options)
    assert all(map(torch.equal, (*found, *cache), (*expected, *others)))


def strided(t: torch.Tensor) -> torch.Tensor:
    """Returns ``t`` with a gap after each element, like a column of a matrix."""
    return torch.stack((t, t), -1)[..., 0]


def test_numbers_of_sequences_have_any_strides() -> None:
    q, cache = rows(2, 1, 4, 64), (rows(6, 16, 2, 64), rows(6, 16, 2, 64))
    table, lengths = torch.tensor([[4, 1], [0, 5]]).int(), torch.tensor([17, 3]).int()
    expected = fa3.flash_attn_with_kvcache(q, *cache, cache_seqlens=lengths, page_table=table)
    options: Any = {"cache_seqlens": strided(lengths), "page_table": strided(table)}
    assert torch.equal(fa3.flash_attn_with_kvcache(q, *cache, **options), expected)


@pytest.mark.usefixtures("by_reference")
def test_lengths_of_packed_sequences_have_any_strides() -> None:
    q, offsets = rows(14, 4, 64), torch.tensor([0, 5, 14]).int()
    used = torch.tensor([3, 9]).int()
    expected = fa3.flash_attn_varlen_func(q, q, q, offsets, offsets, 9, 9, seqused_k=used)
    found = fa3.flash_attn_varlen_func(
        q, q, q, strided(offsets), strided(offsets), 9, 9, seqused_k=strided(used)
    )
    assert torch.equal(found, expected)


def test_a_cache_of_8_bits_has_descales() -> None:
    q, k, v = rows(2, 1, 4, 64), *(rows(2, 40, 2, 64).to(torch.float8_e4m3fn) for _ in "kv")
    scales = torch.rand(2, 2) + 0.5, torch.rand(2, 2) + 0.5
    plain = [t.half() * s[:, None, :, None].half() for t, s in zip((k, v), scales, strict=True)]
    found = fa3.flash_attn_with_kvcache(q, k, v, k_descale=scales[0], v_descale=scales[1])
    expected = fa2.flash_attn_with_kvcache(q, *plain)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


CALLS: dict[str, Callable[..., Any]] = {
    "flash_attn_func": lambda **o: fa3.flash_attn_func(*[rows(1, 9, 2, 64)] * 3, **o),
    "flash_attn_with_kvcache": lambda **o: fa3.flash_attn_with_kvcache(
        *[rows(1, 9, 2, 64)] * 3, **o
    ),
}


@pytest.mark.parametrize(
    "function, options, words",
    [
        ("flash_attn_func", {"qv": rows(1, 9, 2, 64)}, "qv is a Tensor; flashsmith supports None"),
        ("flash_attn_func", {"attention_chunk": 128}, "attention_chunk is 128; .* supports 0"),
        ("flash_attn_with_kvcache", {"q_descale": torch.ones(1, 2)}, "q_descale is a Tensor"),
        ("flash_attn_with_kvcache", {"cu_seqlens_q": torch.ones(2)}, "cu_seqlens_q is a Tensor"),
        ("flash_attn_with_kvcache", {"rotary_seqlens": torch.ones(2)}, "rotary_seqlens is a"),
    ],
)
def test_what_is_not_computed_is_refused(
    function: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(NotImplementedError, match=words):
        CALLS[function](**options)
