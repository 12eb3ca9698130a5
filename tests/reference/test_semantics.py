"""The reference's semantics against other libraries and against plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from flashsmith.reference import (
    Semantics,
    attention_with_rounded_weights,
    reference_attention,
    reference_by_head,
    reference_lse,
    reference_varlen,
)

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
BATCH, HEADS, HEADS_KV, D_HEAD, D_V = 2, 4, 2, 8, 16


def qkv_of(seq_len_q: int, seq_len_k: int, dtype: torch.dtype = torch.float64) -> Tensors:
    q = torch.randn(BATCH, seq_len_q, HEADS, D_HEAD)
    k = torch.randn(BATCH, seq_len_k, HEADS_KV, D_HEAD)
    v = torch.randn(BATCH, seq_len_k, HEADS_KV, D_V)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def by_loops(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: Semantics) -> tuple[Any, Any]:
    """Computes one score at a time, in Python's floats."""
    (batch, n_q, heads, d), n_k, d_v = q.shape, k.shape[1], v.shape[-1]
    o, lse = torch.zeros(batch, n_q, heads, d_v).double(), torch.zeros(batch, heads, n_q).double()
    for b, h, i in product(range(batch), range(heads), range(n_q)):
        shared = h * k.shape[2] // heads
        exponentials = {}
        for j in keys_seen(m, i, n_q, n_k):
            s = float(q[b, i, h] @ k[b, j, shared])
            s *= d**-0.5 if m.softmax_scale is None else m.softmax_scale
            s = score_of(m, s, (b, h, i, j), i if m.top_left else i + n_k - n_q)
            if s > -math.inf:
                exponentials[j] = math.exp(s)
        total = sum(exponentials.values())
        total += 0.0 if m.sinks is None else math.exp(m.sinks[h])
        lse[b, h, i] = math.log(total) if total else -math.inf
        for j, exponential in exponentials.items():
            o[b, i, h] += exponential / total * v[b, j, shared]
    return o, lse


def keys_seen(m: Semantics, i: int, n_q: int, n_k: int) -> Iterator[int]:
    diagonal = i if m.top_left else i + n_k - n_q
    left, right = m.window_size
    for j in range(n_k):
        hidden = m.causal and j > diagonal
        hidden |= left != -1 and j < diagonal - left
        hidden |= right != -1 and j > diagonal + right
        if not hidden:
            yield j


def score_of(m: Semantics, s: float, place: tuple[int, int, int, int], diagonal: int) -> float:
    b, h, i, j = place
    if m.softcap:
        s = m.softcap * math.tanh(s / m.softcap)
    if m.alibi_slopes is not None:
        slope = m.alibi_slopes[b, h] if m.alibi_slopes.ndim == 2 else m.alibi_slopes[h]
        s -= float(slope) * abs(diagonal - j)
    if m.bias is not None:
        s += float(m.bias.expand(BATCH, HEADS, i + 1 if m.bias.shape[2] == 1 else -1, -1)[place])
    return s


def bias_of(*shape: int) -> torch.Tensor:
    bias = torch.randn(shape)
    bias.view(-1)[:: 3 if bias.numel() < 20 else 7] = -math.inf
    return bias


MEANINGS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "plain": lambda n_q, n_k: {},
    "causal": lambda n_q, n_k: {"causal": True},
    "top left": lambda n_q, n_k: {"causal": True, "top_left": True},
    "window": lambda n_q, n_k: {"window_size": (2, 1)},
    "window of nothing but the diagonal": lambda n_q, n_k: {"window_size": (0, 0)},
    "left": lambda n_q, n_k: {"window_size": (3, -1)},
    "right": lambda n_q, n_k: {"window_size": (-1, 0), "top_left": True},
    "causal window": lambda n_q, n_k: {"window_size": (2, 5), "causal": True},
    "softcap": lambda n_q, n_k: {"softcap": 0.7, "softmax_scale": 1.3},
    "alibi": lambda n_q, n_k: {"alibi_slopes": torch.rand(HEADS), "causal": True},
    "alibi of each sample": lambda n_q, n_k: {"alibi_slopes": torch.randn(BATCH, HEADS)},
    "alibi, top left": lambda n_q, n_k: {"alibi_slopes": torch.rand(HEADS), "top_left": True},
    "sinks": lambda n_q, n_k: {"sinks": torch.tensor([0.0, 3.0, -math.inf, -2.0]), "causal": True},
    "bias": lambda n_q, n_k: {"bias": bias_of(BATCH, HEADS, n_q, n_k)},
    "bias of heads": lambda n_q, n_k: {"bias": bias_of(1, HEADS, 1, n_k), "softcap": 2.0},
    "bias of samples": lambda n_q, n_k: {"bias": bias_of(BATCH, 1, n_q, n_k), "causal": True},
    "all": lambda n_q, n_k: {
        "window_size": (4, 2),
        "softcap": 1.5,
        "alibi_slopes": torch.rand(BATCH, HEADS),
        "sinks": torch.randn(HEADS),
        "bias": bias_of(1, HEADS, n_q, 1).expand(-1, -1, -1, n_k),
    },
}  # fmt: skip
EACH = pytest.mark.parametrize("name", MEANINGS)
LENGTHS = pytest.mark.parametrize(("n_q", "n_k"), [(7, 7), (5, 9), (9, 5), (1, 6), (6, 1), (3, 0)])


@LENGTHS
@EACH
def test_reference_is_what_loops_compute(name: str, n_q: int, n_k: int) -> None:
    qkv, meaning = qkv_of(n_q, n_k), MEANINGS[name](n_q, n_k)
    o, lse = by_loops(*qkv, Semantics(**meaning))
    torch.testing.assert_close(reference_attention(*qkv, **meaning), o, rtol=0, atol=1e-12)
    torch.testing.assert_close(reference_lse(*qkv[:2], **meaning), lse, rtol=0, atol=1e-12)


@LENGTHS
@EACH
def test_reference_by_head_gives_each_head_its_own(name: str, n_q: int, n_k: int) -> None:
    qkv, meaning = qkv_of(n_q, n_k), MEANINGS[name](n_q, n_k)
    whole = reference_attention(*qkv, **meaning)
    torch.testing.assert_close(reference_by_head(*qkv, **meaning), whole, rtol=0, atol=1e-12)


@EACH
def test_low_precision_and_rounded_weights_have_the_same_meaning(name: str) -> None:
    qkv, meaning = qkv_of(20, 30, torch.float16), MEANINGS[name](20, 30)
    exact = reference_attention(*qkv, **meaning)
    low = reference_attention(*qkv, compute=torch.float16, **meaning)
    torch.testing.assert_close(low.double(), exact, rtol=0, atol=0.02)
    rounded = attention_with_rounded_weights(*qkv, **meaning)
    torch.testing.assert_close(rounded.double(), exact, rtol=0, atol=2e-3)


# ---- torch's FlexAttention, in eager mode ----


def flex(qkv: Tensors, score_mod: Callable[..., Any]) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = (t.transpose(1, 2) for t in qkv)
    asked = AuxRequest(lse=True)
    o, aux = flex_attention(q, k, v, score_mod=score_mod, enable_gqa=True, return_aux=asked)
    return o.transpose(1, 2), aux.lse


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize(("n_q", "n_k"), [(16, 16), (10, 25)])
def test_reference_is_flex_attention(n_q: int, n_k: int) -> None:
    """The order is softcap, ALiBi, bias, window; each row sees some key."""
    qkv = qkv_of(n_q, n_k)
    slopes, bias = torch.rand(BATCH, HEADS), torch.randn(1, HEADS, n_q, n_k)

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        diagonal = i + n_k - n_q
        s = 1.5 * torch.tanh(s / 1.5) - slopes[b, h] * (diagonal - j).abs() + bias[0, h, i, j]
        return torch.where((j >= diagonal - 4) & (j <= diagonal), s, -math.inf)

    meaning = {"window_size": (4, -1), "causal": True, "softcap": 1.5, "bias": bias,
               "alibi_slopes": slopes}  # fmt: skip
    o, lse = flex(qkv, score_mod)
    torch.testing.assert_close(reference_attention(*qkv, **meaning), o, rtol=0, atol=1e-6)
    torch.testing.assert_close(reference_lse(*qkv[:2], **meaning), lse, rtol=0, atol=1e-6,
                               check_dtype=False)  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
def test_mods_are_those_of_flex_attention() -> None:
    """The mods have tables, which they index by sample, head, query and key."""
    qkv = qkv_of(12, 9)
    table, documents = torch.randn(HEADS, 30), torch.randint(0, 3, (BATCH, 12))

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * 0.5 + table[h, i - j + 9] + b

    def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (documents[b, i] == documents[b, j]) | (j == h)

    def both(s: Any, *place: Any) -> Any:
        return torch.where(mask_mod(*place), score_mod(s, *place), -math.inf)

    meaning = {"score_mod": score_mod, "mask_mod": mask_mod}
    o, lse = flex(qkv, both)
    torch.testing.assert_close(reference_attention(*qkv, **meaning), o, rtol=0, atol=1e-6)
    torch.testing.assert_close(reference_lse(*qkv[:2], **meaning), lse, rtol=0, atol=1e-6,
                               check_dtype=False)  # fmt: skip
    by_head = reference_by_head(*qkv, **meaning)
    torch.testing.assert_close(by_head, o, rtol=0, atol=1e-6)


def test_a_mod_comes_before_the_cap() -> None:
    q, k, _ = qkv_of(4, 6)
    huge = reference_lse(q, k, softcap=2.0, score_mod=lambda s, b, h, i, j: s + 1e6)
    torch.testing.assert_close(huge, torch.full_like(huge, 2 + math.log(6)))


# ---- torch's scaled_dot_product_attention ----


def sdpa(qkv: Tensors, **options: Any) -> torch.Tensor:
    q, k, v = (t.transpose(1, 2) for t in qkv)
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options).transpose(1, 2)


@pytest.mark.parametrize(("n_q", "n_k"), [(8, 8), (5, 9), (9, 5)])
def test_top_left_is_what_torch_calls_causal(n_q: int, n_k: int) -> None:
    qkv = qkv_of(n_q, n_k)
    o = reference_attention(*qkv, causal=True, top_left=True)
    torch.testing.assert_close(o, sdpa(qkv, is_causal=True), rtol=0, atol=1e-12)


def test_bias_is_what_torch_adds_by_its_mask() -> None:
    qkv = qkv_of(7, 11)
    bias = torch.randn(BATCH, 1, 7, 11).double()
    bias[:, :, 2, ::2] = -math.inf
    o = reference_attention(*qkv, bias=bias, softmax_scale=0.3)
    torch.testing.assert_close(o, sdpa(qkv, attn_mask=bias, scale=0.3), rtol=0, atol=1e-12)


# ---- the examples in the docstrings of FlashAttention-2 ----


@pytest.mark.parametrize(
    ("n_q", "n_k", "rows"),
    [(2, 5, ["11110", "11111"]), (5, 2, ["00", "00", "00", "10", "11"])],
)
def test_causal_mask_of_flash_attention(n_q: int, n_k: int, rows: list[str]) -> None:
    visible = Semantics(causal=True).visible(torch.Size((1, 1, n_q, n_k)), torch.device("cpu"))
    assert ["".join(map(str, row)) for row in visible.int().tolist()] == rows


def test_window_of_flash_attention() -> None:
    """Query i sees keys i + seqlen_k - seqlen_q - left to i + seqlen_k - seqlen_q + right."""
    visible = Semantics(window_size=(1, 2)).visible(torch.Size((1, 1, 3, 6)), torch.device("cpu"))
    assert ["".join(map(str, row)) for row in visible.int().tolist()] == [
        "001111",
        "000111",
        "000011",
    ]


# ---- sinks ----


def test_a_sink_is_a_key_more_whose_value_is_zero() -> None:
    q, k, v = qkv_of(6, 9)
    sinks = torch.tensor([0.5, -1.0, 40.0, -math.inf])
    q1, k1, v1 = (F.pad(t, (0, 0, 0, 0, 0, n)) for t, n in ((q, 0), (k, 1), (v, 1)))
    bias = torch.zeros(1, HEADS, 1, 10)
    bias[0, :, 0, -1] = sinks
    expected = reference_attention(q1, k1, v1, bias=bias)
    torch.testing.assert_close(reference_attention(q, k, v, sinks=sinks), expected)
    torch.testing.assert_close(
        reference_lse(q, k, sinks=sinks), reference_lse(q1, k1, bias=bias), check_dtype=False
    )


def test_rows_that_see_nothing_have_the_sink_alone() -> None:
    q, k, v = qkv_of(9, 4)
    sinks = torch.tensor([0.5, -1.0, 40.0, -math.inf])
    o = reference_attention(q, k, v, causal=True, sinks=sinks)
    lse = reference_lse(q, k, causal=True, sinks=sinks)
    assert (o[:, :5] == 0).all() and (o[:, 5:] != 0).any()
    assert torch.equal(lse[:, :, :5], sinks.double()[None, :, None].expand(BATCH, -1, 5))


# ---- packed sequences ----


def cumulated(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


@EACH
def test_packed_sequences_are_those_that_stand_alone(name: str) -> None:
    """A part of each sequence may be unused, and must not count."""
    lengths_q, lengths_k = [4, 3], [9, 5]
    meaning = Semantics(**MEANINGS[name](4, 9))
    q, k, v = (t[0] for t in qkv_of(7, 14))
    cu_q, cu_k = cumulated(lengths_q), cumulated(lengths_k)
    for used_q, used_k in ((None, None), ([2, 3], [9, 0]), ([0, 3], [7, 4])):
        of = {
            "seqused_q": None if used_q is None else torch.tensor(used_q).int(),
            "seqused_k": None if used_k is None else torch.tensor(used_k).int(),
        }
        o, lse = reference_varlen(
            q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **of, **meaning.keywords
        )
        assert o.shape == (7, HEADS, D_V) and lse.shape == (HEADS, 7)
        for b, (n_q, n_k) in enumerate(zip(used_q or lengths_q, used_k or lengths_k, strict=True)):
            begin, end = int(cu_q[b]), int(cu_q[b + 1])
            own = q[None, begin : begin + n_q], *(t[None, cu_k[b] : cu_k[b] + n_k] for t in (k, v))
            alone = meaning.sequence(b, n_q, n_k).keywords
            torch.testing.assert_close(
                o[begin : begin + n_q], reference_attention(*own, **alone)[0]
            )
            torch.testing.assert_close(
                lse[:, begin : begin + n_q], reference_lse(*own[:2], **alone)[0]
            )
            assert (o[begin + n_q : end] == 0).all()
            assert lse[:, begin + n_q : end].isneginf().all()


def test_a_mix_of_packed_queries_and_dense_keys() -> None:
    q, (_, k, v) = qkv_of(7, 1)[0][0], qkv_of(1, 12)
    used = torch.tensor([12, 6]).int()
    o, lse = reference_varlen(q, k, v, cu_seqlens_q=cumulated([3, 4]), seqused_k=used, causal=True)
    dense, dense_lse = reference_varlen(
        F.pad(torch.stack([F.pad(q[:3], (0, 0, 0, 0, 0, 1)), q[3:]]), (0, 0)),
        k, v, seqused_q=torch.tensor([3, 4]).int(), seqused_k=used, causal=True,
    )  # fmt: skip
    assert dense.shape == (2, 4, HEADS, D_V) and (dense[0, 3] == 0).all()
    torch.testing.assert_close(o, torch.cat([dense[0, :3], dense[1]]))
    torch.testing.assert_close(lse, torch.cat([dense_lse[0, :, :3], dense_lse[1]], 1))
    alone = reference_attention(q[None, 3:], k[1:, :6], v[1:, :6], causal=True)
    torch.testing.assert_close(o[3:], alone[0])


def test_packed_mods_see_their_own_sequence() -> None:
    q, k, v = (t[0] for t in qkv_of(7, 9))
    seen: list[tuple[int, int, int]] = []

    def score_mod(s: torch.Tensor, b: Any, h: Any, i: Any, j: Any) -> torch.Tensor:
        seen.append((int(b), int(i.max()), int(j.max())))
        return s

    reference_varlen(
        q, k, v, cu_seqlens_q=cumulated([3, 4]), cu_seqlens_k=cumulated([7, 2]), score_mod=score_mod
    )
    assert set(seen) == {(0, 2, 6), (1, 3, 1)}


def test_keywords_are_what_has_no_default() -> None:
    slopes = torch.rand(2)
    meaning = Semantics(causal=True, window_size=(3, -1), alibi_slopes=slopes)
    assert list(meaning.keywords) == ["causal", "window_size", "alibi_slopes"]
    assert meaning.keywords["alibi_slopes"] is slopes
    assert Semantics().keywords == {}
