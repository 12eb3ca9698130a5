"""FlashAttention's functions: signatures, layouts and results, with attention in plain torch."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch

import flashsmith.flash_attn as flash
from flashsmith.flash_attn import bert_padding, flash_attn_interface
from flashsmith.reference import reference_varlen
from support.attention import attention_by_reference, replace_attention

pytestmark = pytest.mark.usefixtures("by_reference")

TAIL = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
    "alibi_slopes=None, deterministic=False, return_attn_probs=False"
)
LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
GRADIENTS = "dout, q, k, v, out, softmax_lse, dq, dk, dv"
BACKWARD = (
    "dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, "
    "deterministic, rng_state=None"
)
SIGNATURES = {
    "flash_attn_func": f"q, k, v, {TAIL}",
    "flash_attn_qkvpacked_func": f"qkv, {TAIL}",
    "flash_attn_kvpacked_func": f"q, kv, {TAIL}",
    "flash_attn_varlen_func": f"q, k, v, {LENGTHS}, {TAIL}, block_table=None",
    "flash_attn_varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen, {TAIL}",
    "flash_attn_varlen_kvpacked_func": f"q, kv, {LENGTHS}, {TAIL}",
    "flash_attn_with_kvcache": (
        "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
        "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None, "
        "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
        "rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False"
    ),
    "_flash_attn_forward": (
        "q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, "
        "alibi_slopes, return_softmax"
    ),
    "_flash_attn_varlen_forward": (
        f"q, k, v, {LENGTHS}, dropout_p, softmax_scale, causal, window_size_left=-1, "
        "window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False, "
        "block_table=None, leftpad_k=None, seqused_k=None, zero_tensors=False, num_splits=0"
    ),
    "_flash_attn_backward": f"{GRADIENTS}, {BACKWARD}",
    "_flash_attn_varlen_backward": f"{GRADIENTS}, {LENGTHS}, {BACKWARD}, zero_tensors=False",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_those_of_flash_attention(name: str) -> None:
    """Only arguments that may be positional must agree; flashsmith's own are keyword-only."""
    parameters = inspect.signature(getattr(flash_attn_interface, name)).parameters.values()
    by_position = [p.replace(annotation=p.empty) for p in parameters if p.kind != p.KEYWORD_ONLY]
    assert ", ".join(map(str, by_position)) == SIGNATURES[name]
    own = [p.name for p in parameters if p.kind == p.KEYWORD_ONLY]
    of_public = ["sinks"] if "kvcache" in name else ["sinks", "return_lse", "out", "config"]
    assert own == (of_public if name.startswith("flash") else [])


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=2e-3, atol=2e-3)


CU_Q = torch.tensor([0, 3, 3, 10], dtype=torch.int32)
CU_K = torch.tensor([0, 5, 9, 12], dtype=torch.int32)
SEMANTICS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"softmax_scale": 0.3},
    {"window_size": (2, 1)},
    {"causal": True, "window_size": (1, 5)},
    {"softcap": 1.5},
    {"alibi_slopes": torch.tensor([0.5, 1.0, 0.1, 2.0])},
    {"sinks": torch.tensor([0.5, -1.0, 0.1, 2.0])},
]


@pytest.mark.parametrize("semantics", SEMANTICS, ids=lambda s: "+".join(s) or "plain")
def test_all_six_functions_compute_attention(semantics: dict[str, Any]) -> None:
    q, k, v = random(2, 7, 4, 16), random(2, 9, 2, 16), random(2, 9, 2, 16)
    expected, lse = reference_varlen(q, k, v, **semantics)
    assert_equal(flash.flash_attn_func(q, k, v, **semantics), expected)
    kv = torch.stack([k, v], 2)
    out, found, S_dmask = flash.flash_attn_kvpacked_func(q, kv, **semantics, return_attn_probs=True)
    assert_equal(out, expected)
    assert_equal(found, lse)
    assert S_dmask.numel() == 0 and S_dmask.dtype == q.dtype
    qkv = random(2, 7, 3, 4, 16)
    expected, _ = reference_varlen(*qkv.unbind(2), **semantics)
    assert_equal(flash.flash_attn_qkvpacked_func(qkv, **semantics), expected)


@pytest.mark.parametrize("semantics", SEMANTICS, ids=lambda s: "+".join(s) or "plain")
def test_packed_sequences(semantics: dict[str, Any]) -> None:
    q, kv, qkv = random(10, 4, 16), random(12, 2, 2, 16), random(10, 3, 4, 16)
    k, v = kv.unbind(1)
    lengths = (CU_Q, CU_K, 7, 5)
    expected, lse = reference_varlen(q, k, v, cu_seqlens_q=CU_Q, cu_seqlens_k=CU_K, **semantics)
    assert_equal(flash.flash_attn_varlen_func(q, k, v, *lengths, **semantics), expected)
    out, found = flash.flash_attn_varlen_kvpacked_func(
        q, kv, *lengths, **semantics, return_lse=True
    )
    assert_equal(out, expected)
    assert_equal(found, lse)
    expected, _ = reference_varlen(
        *qkv.unbind(1), cu_seqlens_q=CU_Q, cu_seqlens_k=CU_Q, **semantics
    )
    assert_equal(flash.flash_attn_varlen_qkvpacked_func(qkv, CU_Q, 7, **semantics), expected)


@pytest.mark.parametrize(
    ("lengths", "seen"),
    [((2, 5), "11110 11111"), ((5, 2), "00 00 00 10 11")],
    ids=["more keys", "more queries"],
)
def test_causal_attention_is_that_of_the_examples(lengths: tuple[int, int], seen: str) -> None:
    """The examples are in FlashAttention's documentation; powers of 2 in v tell the keys apart."""
    n_q, n_k = lengths
    q = torch.zeros(1, n_q, 1, 8).half()
    v = (2.0 ** torch.arange(n_k)).half().view(1, n_k, 1, 1).expand(1, n_k, 1, 8).contiguous()
    out = flash.flash_attn_func(q, torch.zeros_like(v), v, causal=True)
    for row, keys in zip(out[0, :, 0, 0].tolist(), seen.split(), strict=True):
        ones = [2.0**j for j, key in enumerate(keys) if key == "1"]
        assert row == pytest.approx(sum(ones) / max(len(ones), 1), rel=1e-3)


@pytest.mark.parametrize("d_head", [20, 59, 111])
def test_heads_of_any_size_are_taken(d_head: int) -> None:
    """The scale depends on the caller's d_head, not on the padded one that the kernel sees."""
    q, k, v = (random(1, 5, 2, d_head) for _ in range(3))
    expected, lse = reference_varlen(q, k, v)
    out, found = flash.flash_attn_func(q, k, v, return_lse=True)
    assert out.shape == q.shape
    assert_equal(out, expected)
    assert_equal(found, lse)


def test_tensors_with_gaps_between_elements_are_copied() -> None:
    q, k, v = (random(1, 5, 2, 32)[..., ::2] for _ in range(3))
    expected, _ = reference_varlen(q, k, v)
    assert_equal(flash.flash_attn_func(q, k, v), expected)


def test_a_softcap_below_0_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    caps = []

    def recorded(*tensors: torch.Tensor, softcap: float = 0, **keywords: Any) -> Any:
        caps.append(softcap)
        return attention_by_reference(*tensors, softcap=softcap, **keywords)

    replace_attention(monkeypatch, recorded)
    q = random(1, 5, 2, 16)
    for cap in (-1.0, -1, 0.0, 2.0):
        flash.flash_attn_func(q, q, q, softcap=cap)
    assert caps == [0, 0, 0, 2]


def test_out_is_written_and_returned() -> None:
    q = random(1, 5, 2, 16)
    out = torch.empty_like(q)
    assert flash.flash_attn_func(q, q, q, out=out) is out
    assert torch.equal(out, flash.flash_attn_func(q, q, q))


def test_lengths_may_be_in_tensors() -> None:
    """transformers passes lengths as tensors."""
    q, kv = random(10, 4, 16), random(12, 2, 2, 16)
    numbers = flash.flash_attn_varlen_kvpacked_func(q, kv, CU_Q, CU_K, 7, 5)
    tensors = flash.flash_attn_varlen_kvpacked_func(
        q, kv, CU_Q, CU_K, CU_Q.diff().max(), CU_K.diff().max()
    )
    assert torch.equal(numbers, tensors)


def test_a_window_may_be_a_tensor() -> None:
    """A window may be a tensor because FlashAttention's own tests pass one."""
    q = random(2, 9, 4, 16)
    sides = flash.flash_attn_func(q, q, q, window_size=(2, 1))
    tensor = flash.flash_attn_func(q, q, q, window_size=torch.tensor([2, 1]))
    assert torch.equal(sides, tensor)


def test_low_level_functions_return_four_tensors() -> None:
    q, k, v = random(2, 7, 4, 16), random(2, 9, 2, 16), random(2, 9, 2, 16)
    expected = flash.flash_attn_func(q, k, v, 0.0, 0.2, window_size=(1, 2), return_lse=True)
    out, lse, S_dmask, rng_state = flash_attn_interface._flash_attn_forward(
        q, k, v, 0.0, 0.2, False, 1, 2, 0.0, None, False
    )
    assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])
    assert S_dmask.numel() == 0 and rng_state.shape == (2,)
    seqused = torch.tensor([2, 4, 0], dtype=torch.int32)
    packed, packed_k, packed_v = random(10, 4, 16), random(12, 2, 16), random(12, 2, 16)
    out, lse, *_ = flash_attn_interface._flash_attn_varlen_forward(
        packed, packed_k, packed_v, CU_Q, CU_K, 7, 5, 0.0, None, True, seqused_k=seqused
    )
    expected = reference_varlen(
        packed, packed_k, packed_v, causal=True,
        cu_seqlens_q=CU_Q, cu_seqlens_k=CU_K, seqused_k=seqused,
    )  # fmt: skip
    assert_equal(out, expected[0])
    assert_equal(lse, expected[1])


# ---- padding ----


def test_padding_is_taken_out_and_put_back() -> None:
    states = random(3, 5, 2, 8)
    mask = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
    tokens, indices, cu_seqlens, longest, seqused = bert_padding.unpad_input(states, mask)
    assert torch.equal(tokens, states[mask.bool()])
    assert cu_seqlens.tolist() == [0, 2, 5, 5] and cu_seqlens.dtype == torch.int32
    assert longest == 3 and seqused.tolist() == [2, 3, 0] and seqused.dtype == torch.int32
    back = bert_padding.pad_input(tokens, indices, 3, 5)
    assert torch.equal(back, states * mask[..., None, None])
    assert torch.equal(bert_padding.index_first_axis(states.flatten(0, 1), indices), tokens)


def test_room_that_is_not_used_stays() -> None:
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    unused = torch.tensor([[0, 0, 1, 0], [0, 1, 1, 0]], dtype=torch.bool)
    tokens, _, cu_seqlens, longest, seqused = bert_padding.unpad_input(
        random(2, 4, 8), mask, unused
    )
    assert cu_seqlens.tolist() == [0, 3, 6] and longest == 3 and seqused.tolist() == [2, 1]
    assert tokens.shape == (6, 8)


# ---- what is refused ----

Q = random(1, 5, 2, 16)
PACKED = random(10, 4, 16)
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ("flash_attn_func", (Q, Q, Q, 1.0), {}, ValueError, r"dropout_p is 1\.0; .* 0 to below 1"),
    ("flash_attn_func", (Q, Q, Q, -0.1), {}, ValueError, r"dropout_p is -0\.1; .* 0 to below 1"),
    ("flash_attn_func", (Q, Q, Q, math.nan), {}, ValueError, "dropout_p is nan"),
    ("flash_attn_func", (Q, Q, Q, "0"), {}, TypeError, "dropout_p is '0'; expected a float"),
    ("flash_attn_func", (Q, Q, Q, True), {}, TypeError, "dropout_p is True; expected a float"),
    ("flash_attn_func", (Q, Q, Q), {"deterministic": 1}, TypeError, "deterministic is 1"),
    ("flash_attn_func", (Q, Q, Q), {"return_attn_probs": None}, TypeError, "return_attn_probs is"),
    ("flash_attn_func", (Q, Q, Q), {"return_lse": 1}, TypeError, "return_lse is 1; expected True"),
    ("flash_attn_func", (None, Q, Q), {}, TypeError, "q is a NoneType; expected a torch.Tensor"),
    ("flash_attn_func", (Q, [1], Q), {}, TypeError, "k is a list; expected a torch.Tensor"),
    ("flash_attn_func", (Q, Q, 1.0), {}, TypeError, "v is a float; expected a torch.Tensor"),
    ("flash_attn_func", (Q, Q, Q), {"sinks": [1.0]}, TypeError, "sinks is a list"),
    ("flash_attn_func", (Q[..., :10],) * 3, {"out": Q}, ValueError, "out is given, .* 10 and 10"),
    ("flash_attn_qkvpacked_func", (Q,), {}, ValueError, r"qkv has shape \(1, 5, 2, 16\); .* 5 dim"),
    ("flash_attn_qkvpacked_func", (random(1, 5, 2, 2, 16),), {}, ValueError,
     r"qkv has shape .*; expected 3 in dimension 2: \(batch, seqlen, 3, nheads, headdim\)"),
    ("flash_attn_qkvpacked_func", (None,), {}, TypeError, "qkv is a NoneType"),
    ("flash_attn_kvpacked_func", (Q, random(1, 5, 3, 2, 16)), {}, ValueError, "kv has .* 2 in"),
    ("flash_attn_varlen_qkvpacked_func", (PACKED, CU_Q, 7), {}, ValueError, "qkv has .* 4 dim"),
    ("flash_attn_varlen_kvpacked_func", (PACKED, PACKED, CU_Q, CU_Q, 7, 7), {}, ValueError,
     "kv has shape .* 4 dim"),
    ("flash_attn_with_kvcache", (Q, 3, Q), {}, TypeError, "k_cache is a int"),
    ("flash_attn_with_kvcache", (Q, Q, Q), {"num_splits": -1}, ValueError, "splits is -1"),
    ("flash_attn_with_kvcache", (Q, Q, Q), {"k": Q}, ValueError, "k_new and v_new go together"),
    ("_flash_attn_varlen_forward", (PACKED, PACKED, PACKED, CU_Q, CU_Q, 7, 7, 0.0, None, False),
     {"leftpad_k": CU_Q}, NotImplementedError, "leftpad_k is given"),
    ("_flash_attn_varlen_forward", (PACKED, PACKED, PACKED, CU_Q, CU_Q, 7, 7, 0.0, None, False),
     {"num_splits": 3}, NotImplementedError, "num_splits is 3; only 0 and 1"),
    ("_flash_attn_forward", (Q, Q, Q, 1.5, None, False, -1, -1, 0.0, None, False), {},
     ValueError, r"dropout_p is 1\.5; .* below 1"),
    ("_flash_attn_backward", (*(Q,) * 9, 0.5, None, False, -1, -1, 0.0, None, False), {},
     ValueError, r"rng_state is None, but dropout_p is 0\.5; expected a tensor of two int64"),
    ("_flash_attn_backward", (*(Q,) * 9, 0.0, None, False, -1, -1, 0.0, None, 1), {}, TypeError,
     "deterministic is 1; expected True"),
    ("_flash_attn_backward", (Q, Q, Q, Q, None, *(Q,) * 4, 0.0, None, False, -1, -1, 0.0, None,
     False), {}, TypeError, "out is a NoneType; expected a torch.Tensor"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "keywords", "error", "words"),
    CASES,
    ids=[f"{name}-{words[:24]}" for name, *_, words in CASES],
)
def test_bad_input_is_refused(
    name: str, arguments: Any, keywords: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        getattr(flash_attn_interface, name)(*arguments, **keywords)


def test_what_padding_refuses() -> None:
    with pytest.raises(ValueError, match=r"attention_mask has shape \(3, 4\); expected \(3, 5\)"):
        bert_padding.unpad_input(random(3, 5, 8), torch.ones(3, 4))
    with pytest.raises(TypeError, match="attention_mask is a list"):
        bert_padding.unpad_input(random(3, 5, 8), [1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="hidden_states is a NoneType"):
        bert_padding.unpad_input(None, torch.ones(3, 4))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="indices is a list"):
        bert_padding.pad_input(random(3, 8), [0, 1, 2], 1, 3)  # type: ignore[arg-type]
