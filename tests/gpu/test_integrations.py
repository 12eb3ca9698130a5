"""torch's own functions and compiled graphs on a GPU, computed by flashsmith."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashsmith.flash_attn as flash
from flashsmith.integrations import torch_sdpa
from flashsmith.ops import attention, operators
from flashsmith.ops.forward import run_attention
from flashsmith.reference import reference_varlen
from support.minilm import (
    PADDING_SIDES,
    SENTENCES,
    assert_embeddings_as_eager,
    load_model,
    tokens_of,
)
from support.models import IDS, PADDING, assert_as_eager, tiny_model

pytestmark = pytest.mark.gpu


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=2e-2)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Those of flashsmith's attention."""
    found: list[object] = []

    def recorded(*arguments: Any) -> Any:
        found.append(arguments)
        return run_attention(*arguments)

    for module in (attention, operators):
        monkeypatch.setattr(module, "run_attention", recorded)
    return found


@pytest.fixture
def activated() -> Iterator[None]:
    torch_sdpa.register()
    torch.nn.attention.activate_flash_attention_impl(torch_sdpa.NAME)
    yield
    torch.nn.attention.restore_flash_attention_impl()


@pytest.mark.parametrize("is_causal", [False, True])
def test_scaled_dot_product_attention_of_torch_calls_flashsmith(
    activated: None, calls: list[object], is_causal: bool
) -> None:
    q, k, v = (random(2, 4, 300, 64) for _ in range(3))
    attention = F.scaled_dot_product_attention
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        found = attention(q, k, v, is_causal=is_causal)
        compiled = torch.compile(lambda *t: attention(*t, is_causal=is_causal), fullgraph=True)
        assert torch.equal(compiled(q, k, v), found)
    assert len(calls) == 2
    expected = attention(q.float(), k.float(), v.float(), is_causal=is_causal)
    assert_equal(found, expected)


def test_after_restoring_torch_calls_its_own(activated: None, calls: list[object]) -> None:
    torch.nn.attention.restore_flash_attention_impl()
    q = random(2, 4, 300, 64)
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        F.scaled_dot_product_attention(q, q, q)
    assert not calls


def test_varlen_attn_of_torch_calls_flashsmith(activated: None, calls: list[object]) -> None:
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (random(300, 4, 64) for _ in range(3))
    cu = torch.tensor([0, 100, 300], device="cuda", dtype=torch.int32)
    with torch.no_grad():
        found = varlen_attn(q, k, v, cu, cu, 200, 200)
    assert len(calls) == 1
    assert_equal(found, reference_varlen(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu)[0])


def test_compiled_packed_attention() -> None:
    """By Inductor; the result's own memory is used again by the graph."""

    @torch.compile(fullgraph=True)
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu: torch.Tensor) -> Any:
        return flash.flash_attn_varlen_func(q * 2, k, v, cu, cu, 200, 200, causal=True) + 1

    for total in (300, 310, 333):
        q, k, v = random(total, 4, 64), random(total, 2, 64), random(total, 2, 64)
        cu = torch.tensor([0, 130, total], device="cuda", dtype=torch.int32)
        expected = reference_varlen(q * 2, k, v, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu)
        assert_equal(function(q, k, v, cu), expected[0] + 1)


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("model", ["bert", "llama", "mistral", "gpt_oss"])
def test_models_of_transformers(model: str, padding: str) -> None:
    pytest.importorskip("transformers")
    integration = importlib.import_module("flashsmith.integrations.transformers")
    mask = PADDING[padding]
    mask = mask if mask is None else mask.cuda()
    with torch.no_grad():
        assert_as_eager(
            tiny_model(model).cuda(), integration.register(), mask,
            input_ids=IDS.cuda(), attention_mask=mask,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("padding_side", PADDING_SIDES)
def test_sentence_embeddings_are_those_of_eager_attention(
    padding_side: str, dtype: torch.dtype
) -> None:
    """Of short sentences beside a text of several hundred tokens."""
    pytest.importorskip("transformers")
    integration = importlib.import_module("flashsmith.integrations.transformers")
    tokens = tokens_of((*SENTENCES, " ".join(SENTENCES * 12)), padding_side)
    tokens = {name: value.cuda() for name, value in tokens.items()}
    with torch.no_grad():
        assert_embeddings_as_eager(load_model().cuda(), integration.register(), dtype, tokens)
