"""Functions of other libraries on emulated kernels, with a few cases each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import flashsmith
import flashsmith.flash_attn as flash
from flashsmith.configs import KernelId, Variant
from flashsmith.flash_attn import flash_attn_interface
from flashsmith.integrations import torch_sdpa
from flashsmith.jit import Target
from flashsmith.reference import reference_varlen
from flashsmith.runtime import load_kernels
from flashsmith.selection.select import select_config
from support.models import IDS, PADDING, assert_as_eager, tiny_model

CU = torch.tensor([0, 3, 3, 10], dtype=torch.int32)
# The calls below need these variants; most have rows shorter than the kernel's d_head.
VARIANTS = (
    "causal", "alibi", "sinks", "causal+varlen", "varlen", "alibi+varlen", "sinks+varlen",
    "padded", "causal+padded", "bias+padded", "causal+bias+padded", "causal+window+padded",
    "causal+window+sinks+padded", "varlen+padded", "causal+varlen+padded",
    "causal+sinks+varlen+padded", "causal+window+sinks+varlen+padded",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    """Builds all kernels at once, with one list of kernels and one link."""
    config = select_config(random(1, 9, 2, 64))
    kernels = [KernelId(config, Variant.from_name(name)) for name in VARIANTS]
    load_kernels(kernels, Target.emulator())


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    "semantics",
    [{}, {"causal": True}, {"window_size": (2, 1), "sinks": torch.tensor([0.5, -1.0, 0.1, 2.0])}],
    ids=lambda s: "+".join(s) or "plain",
)
def test_flash_attention_of_any_head_dense_and_packed(semantics: dict[str, Any]) -> None:
    q, k, v = random(2, 70, 4, 20), random(2, 75, 2, 20), random(2, 75, 2, 20)
    out, lse, _ = flash.flash_attn_func(q, k, v, **semantics, return_attn_probs=True)
    expected, expected_lse = reference_varlen(q, k, v, **semantics)
    assert_equal(out, expected)
    assert_equal(lse, expected_lse)
    q, k, v = random(10, 4, 20), random(10, 2, 20), random(10, 2, 20)
    lengths = (CU, CU, 7, 7)
    out, lse = flash.flash_attn_varlen_func(q, k, v, *lengths, **semantics, return_lse=True)
    expected, expected_lse = reference_varlen(
        q, k, v, cu_seqlens_q=CU, cu_seqlens_k=CU, **semantics
    )
    assert_equal(out, expected)
    assert_equal(lse, expected_lse)


def test_packed_tensors_of_flash_attention_are_not_copied() -> None:
    """The strides of the packed tensor are passed to the kernel."""
    qkv = random(2, 9, 3, 4, 64)
    expected, _ = reference_varlen(*qkv.unbind(2), causal=True)
    assert_equal(flash.flash_attn_qkvpacked_func(qkv, causal=True), expected)


def test_seqused_k_of_the_low_level_function() -> None:
    q, k, v = random(10, 4, 64), random(10, 2, 64), random(10, 2, 64)
    seqused = torch.tensor([2, 0, 7], dtype=torch.int32)
    out, lse, *_ = flash_attn_interface._flash_attn_varlen_forward(
        q, k, v, CU, CU, 7, 7, 0.0, None, True, seqused_k=seqused
    )
    expected = reference_varlen(
        q, k, v, causal=True, cu_seqlens_q=CU, cu_seqlens_k=CU, seqused_k=seqused
    )
    assert_equal(out, expected[0])
    assert_equal(lse, expected[1])


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "numbers", "bool of keys"])
def test_scaled_dot_product_attention(mask: str) -> None:
    q, k, v = random(2, 4, 7, 24), random(2, 2, 9, 24), random(2, 2, 9, 16)
    attn_mask = {
        "bool": torch.rand(2, 1, 7, 9) < 0.5,
        "numbers": random(4, 7, 9),
        "bool of keys": torch.rand(2, 1, 1, 9) < 0.5,
    }.get(mask)
    keywords = {"is_causal": mask == "causal", "enable_gqa": True}
    found = flashsmith.scaled_dot_product_attention(q, k, v, attn_mask, **keywords)
    if mask == "numbers":
        attn_mask = attn_mask.float()
    expected = F.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), attn_mask, **keywords
    )
    assert_equal(found, expected.nan_to_num())


def test_torch_s_operator_writes_where_query_lies() -> None:
    override = torch_sdpa.override("CPU")
    q, k, v = (random(2, 4, 7, 64) for _ in range(3))
    try:
        for query in (q, q.transpose(1, 2).contiguous().transpose(1, 2)):
            out = torch.ops.aten._scaled_dot_product_flash_attention(query, k, v, 0.0, True)[0]
            expected = F.scaled_dot_product_attention(
                q.float(), k.float(), v.float(), is_causal=True
            )
            assert_equal(out, expected)
            assert out.stride() == query.stride()
    finally:
        override.remove()


def test_flex_attention_with_torch_s_block_mask() -> None:
    """The caller's functions and tensors are a document mask and a table of relative positions."""
    documents = torch.tensor([0, 0, 1, 1, 1, 2, 2], dtype=torch.int32)
    table = torch.randn(13)

    def same_document(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (documents[q_idx] == documents[kv_idx]) & (q_idx >= kv_idx)

    def relative(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + table[q_idx - kv_idx + 6] * (h + 1)

    block_mask = create_block_mask(same_document, None, None, 7, 7, "cpu")
    q, k, v = random(2, 4, 7, 64), random(2, 2, 7, 64), random(2, 2, 7, 64)
    arguments = {"score_mod": relative, "block_mask": block_mask, "scale": 0.2}
    o, lse = flashsmith.flex_attention(q, k, v, **arguments, enable_gqa=True, return_lse=True)
    expected = flex_attention(q.float(), k.float(), v.float(), **arguments, enable_gqa=True)
    assert_equal(o, expected)
    assert lse.shape == (2, 4, 7) and lse.isfinite().all()


def test_a_compiled_graph() -> None:
    function = torch.compile(flash.flash_attn_func, fullgraph=True, backend="aot_eager")
    for length in (5, 70):
        q, k, v = random(1, length, 4, 64), random(1, 9, 2, 64), random(1, 9, 2, 64)
        expected = flash.flash_attn_func(q, k, v, causal=True)
        assert torch.equal(function(q, k, v, causal=True), expected)


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"window_size": (-2, 0)}, ValueError, r"window_size is \(-2, 0\); expected at least 0"),
        ({"window_size": 5}, TypeError, "window_size is 5; expected two ints"),
        ({"softcap": "1"}, TypeError, "softcap is a str; expected a float"),
        ({"softmax_scale": -1.0}, ValueError, r"softmax_scale is -1\.0"),
        ({"causal": 1}, TypeError, "causal is 1; expected True or False"),
        ({"alibi_slopes": torch.ones(3)}, ValueError, "alibi_slopes"),
        ({"alibi_slopes": torch.ones(2).half()}, TypeError, "alibi_slopes"),
        ({"sinks": torch.ones(3)}, ValueError, "sinks"),
    ],
)
def test_what_attention_checks_is_refused_here_too(
    keywords: dict[str, Any], error: type[Exception], words: str
) -> None:
    q = random(1, 5, 2, 64)
    with pytest.raises(error, match=words):
        flash.flash_attn_func(q, q, q, **keywords)
    packed, cu = random(5, 2, 64), torch.tensor([0, 5], dtype=torch.int32)
    with pytest.raises(error, match=words):
        flash.flash_attn_varlen_func(packed, packed, packed, cu, cu, 5, 5, **keywords)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"cu_seqlens_q": torch.tensor([0, 5])}, TypeError, "cu_seqlens_q"),
        ({"cu_seqlens_k": torch.tensor([0, 9]).int()}, ValueError, "cu_seqlens_k"),
        ({"cu_seqlens_q": [0, 5]}, TypeError, "cu_seqlens_q is a list"),
        ({"max_seqlen_q": -1}, ValueError, "max_seqlen_q is -1"),
        ({"max_seqlen_k": 5.0}, (TypeError, ValueError), r"max_seqlen_k is 5\.0"),
    ],
)
def test_lengths_that_cannot_be_are_refused(
    changes: dict[str, Any], error: Any, words: str
) -> None:
    q, cu = random(5, 2, 64), torch.tensor([0, 5], dtype=torch.int32)
    lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 5, "max_seqlen_k": 5}
    with pytest.raises(error, match=words):
        flash.flash_attn_varlen_func(q, q, q, **lengths | changes)


@pytest.mark.parametrize(
    ("model", "padding"),
    [
        ("bert", "left"),
        ("bert", "right"),
        ("llama", "left"),
        ("mistral", "no padding"),
        ("mistral", "gaps"),
        ("gpt_oss", "right"),
        ("t5", "right"),
    ],
)
def test_models_of_transformers(model: str, padding: str) -> None:
    integration = pytest.importorskip("flashsmith.integrations.transformers")
    tiny, mask = tiny_model(model), PADDING[padding]
    used = None if model == "t5" else mask
    with torch.no_grad():
        assert_as_eager(
            tiny, integration.register(), used, torch.float16, input_ids=IDS, attention_mask=mask
        )


def test_wide_heads_of_transformers_are_refused() -> None:
    """The full-attention layers of Gemma 4 have such heads."""
    integration = pytest.importorskip("flashsmith.integrations.transformers")
    wide = torch.zeros(1, 2, 3, 512, dtype=torch.float16)
    with pytest.raises(ValueError, match="q has d_head 512; supported are multiples of 8 up to"):
        integration.attention_forward(torch.nn.Module(), wide, wide, wide, None)
