"""torch's own functions and compiled graphs on a GPU, computed by flashsmith."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashsmith.flash_attn as flash
from flashsmith.integrations import torch_sdpa
from flashsmith.ops import attention, operators
from flashsmith.ops.backward import run_backward
from flashsmith.ops.forward import run_attention
from flashsmith.reference import reference_varlen
from support.differentiation import assert_gradients, gradients_of
from support.minilm import (
    PADDING_SIDES,
    SENTENCES,
    assert_embeddings_as_eager,
    load_model,
    tokens_of,
    why_missing,
)
from support.models import (
    IDS,
    PADDING,
    assert_as_eager,
    assert_gradients_as_eager,
    tiny_model,
)
from support.paths import ROOT
from support.ring import EXAMPLE

pytestmark = pytest.mark.gpu


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=2e-2)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Returns the list of the calls of flashsmith's attention."""
    found: list[object] = []

    def recorded(*arguments: Any, **keywords: Any) -> Any:
        found.append(arguments)
        return run_attention(*arguments, **keywords)

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


@pytest.mark.parametrize("is_causal", [False, True])
def test_scaled_dot_product_attention_of_torch_trains_by_flashsmith(
    activated: None, monkeypatch: pytest.MonkeyPatch, is_causal: bool
) -> None:
    """The compiled function is right too, though Inductor relies on the layout of the gradients."""
    calls: list[object] = []

    def recorded(*arguments: Any, **keywords: Any) -> Any:
        calls.append(arguments)
        return run_backward(*arguments, **keywords)

    monkeypatch.setattr(torch_sdpa, "run_backward", recorded)

    def plain(*tensors: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*tensors, is_causal=is_causal)

    def own(*tensors: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return plain(*tensors)

    tensors = [random(2, 300, 4, 64).transpose(1, 2), random(2, 4, 300, 64), random(2, 4, 300, 64)]
    with sdpa_kernel(SDPBackend.MATH):
        assert_gradients(own, plain, *tensors)
    assert len(calls) == 1
    do = [random(2, 4, 300, 64)]
    compiled = gradients_of(torch.compile(own, fullgraph=True), tensors, do)
    assert len(calls) == 2
    for found, expected in zip(compiled, gradients_of(own, tensors, do), strict=True):
        assert_equal(found, expected)


def test_packed_functions_of_flash_attention_train() -> None:
    cu = torch.tensor([0, 100, 100, 300], device="cuda", dtype=torch.int32)
    assert_gradients(
        lambda qkv: flash.flash_attn_varlen_qkvpacked_func(qkv, cu, 200, causal=True),
        lambda qkv: reference_varlen(
            *qkv.unbind(1), compute=qkv.dtype, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu
        )[0],
        random(300, 3, 4, 128),
        shapes=[(300, 4, 128)],
    )


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_context_parallel_over_two_gpus() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(ROOT / EXAMPLE), "--seq-len=4096", "--times=2"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, *rows = (line.split() for line in done.stdout.splitlines()[:4])
    assert [row[0] for row in rows] == ["alone", "allgather", "alltoall"]
    assert all(float(difference) < 2e-2 for row in rows for difference in row[3:])


def test_compiled_packed_attention() -> None:
    """Inductor compiles the call, and the graph reuses the memory of the result."""

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


@pytest.mark.parametrize("model", ["bert", "llama", "mistral", "gpt_oss"])
def test_models_of_transformers_train(model: str) -> None:
    pytest.importorskip("transformers")
    integration = importlib.import_module("flashsmith.integrations.transformers")
    mask = PADDING["right"].cuda()
    assert_gradients_as_eager(
        tiny_model(model).cuda(), integration.register(), mask,
        input_ids=IDS.cuda(), attention_mask=mask,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("padding_side", PADDING_SIDES)
def test_sentence_embeddings_are_those_of_eager_attention(
    padding_side: str, dtype: torch.dtype
) -> None:
    """The batch has short sentences beside a text of several hundred tokens."""
    pytest.importorskip("transformers")
    if reason := why_missing():  # a borrowed machine may have no network
        pytest.skip(reason)
    integration = importlib.import_module("flashsmith.integrations.transformers")
    tokens = tokens_of((*SENTENCES, " ".join(SENTENCES * 12)), padding_side)
    tokens = {name: value.cuda() for name, value in tokens.items()}
    with torch.no_grad():
        assert_embeddings_as_eager(load_model().cuda(), integration.register(), dtype, tokens)
