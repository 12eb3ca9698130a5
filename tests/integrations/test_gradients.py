"""Gradients of torch's functions and of transformers' layers, on emulated kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.attention.varlen import varlen_attn

import flashsmith
from flashsmith.integrations import torch_sdpa
from flashsmith.ops.spec import AttentionSpec
from flashsmith.reference import reference_varlen
from support.differentiation import assert_gradients, gradients_of
from support.models import IDS, PADDING, assert_gradients_as_eager, tiny_model
from support.trained import build_for_training

ATEN = torch.ops.aten
CU = torch.tensor([0, 3, 3, 10], dtype=torch.int32)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    build_for_training(
        "padded", "varlen+padded", "causal+padded", "causal+varlen+padded", "bias+padded",
        "causal+window+sinks+padded", "causal+sinks+padded",
    )  # fmt: skip


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


# ---- functions of flashsmith for torch ----


@pytest.mark.parametrize("mask", ["none", "causal", "bool"])
def test_scaled_dot_product_attention(mask: str) -> None:
    q, k, v = random(2, 4, 7, 24), random(2, 2, 9, 24), random(2, 2, 9, 16)
    attn_mask = torch.rand(2, 1, 7, 9) < 0.5 if mask == "bool" else None
    if attn_mask is not None:
        attn_mask[..., 0] = True  # torch itself returns NaN for a row that sees no key
    keywords = {"is_causal": mask == "causal", "enable_gqa": True}
    assert_gradients(
        lambda *t: flashsmith.scaled_dot_product_attention(*t, attn_mask, **keywords),
        lambda *t: F.scaled_dot_product_attention(*t, attn_mask, **keywords),
        q, k, v,
        shapes=[(2, 4, 7, 16)],
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(2, 4, 7, 9), (2, 1, 1, 9), (9,)], ids=str)
def test_a_mask_of_numbers_has_a_gradient_of_its_own_shape(shape: tuple[int, ...]) -> None:
    assert_gradients(
        flashsmith.scaled_dot_product_attention,
        F.scaled_dot_product_attention,
        *(random(2, 4, n, 13) for n in (7, 9, 9)),
        random(*shape),
    )


def test_flex_attention() -> None:
    """The call has a block mask of torch's and a score_mod that is not linear; torch computes no
    gradients of it on a CPU."""
    documents = torch.tensor([0, 0, 1, 1, 1, 2, 2], dtype=torch.int32)

    def same_document(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (documents[q_idx] == documents[kv_idx]) & (q_idx >= kv_idx)

    def capped(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.tanh(score / 2) * (h + 1)

    def plain(*tensors: torch.Tensor) -> Any:
        o, lse = reference_varlen(
            *(t.transpose(1, 2) for t in tensors), compute=tensors[0].dtype, softmax_scale=0.4,
            score_mod=capped, mask_mod=same_document,
        )  # fmt: skip
        return o.transpose(1, 2), lse

    mask = create_block_mask(same_document, None, None, 7, 7, "cpu")
    keywords = {"scale": 0.4, "enable_gqa": True, "return_lse": True}
    assert_gradients(
        lambda *t: flashsmith.flex_attention(*t, score_mod=capped, block_mask=mask, **keywords),
        plain, random(2, 4, 7, 16), random(2, 2, 7, 16), random(2, 2, 7, 16),
        shapes=[(2, 4, 7, 16), (2, 4, 7)],
    )  # fmt: skip


# ---- torch's own functions ----


@pytest.fixture
def overridden() -> Iterator[None]:
    override = torch_sdpa.override("CPU")
    yield
    override.remove()


@pytest.mark.parametrize("seq_len_k", [7, 9])
@pytest.mark.parametrize("is_causal", [False, True])
def test_torch_s_operator(overridden: None, is_causal: bool, seq_len_k: int) -> None:
    q, k, v = random(2, 4, 7, 16), random(2, 4, seq_len_k, 16), random(2, 4, seq_len_k, 16)
    assert_gradients(
        lambda *t: ATEN._scaled_dot_product_flash_attention(*t, 0.0, is_causal, scale=0.3)[0],
        lambda *t: F.scaled_dot_product_attention(*t, is_causal=is_causal, scale=0.3),
        q, k, v,
    )  # fmt: skip


def test_gradients_of_torch_s_operator_lie_in_memory_as_its_tensors_do(overridden: None) -> None:
    """A compiled graph relies on these strides, and gives the same gradients."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]

    q, k, v, do = (random(2, 4, 7, 16) for _ in range(4))
    transposed = k.transpose(1, 2).contiguous().transpose(1, 2)
    found = gradients_of(attend, (q, transposed, v), [do])
    assert [t.stride() for t in found] == [q.stride(), transposed.stride(), v.stride()]
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for own, other in zip(gradients_of(compiled, (q, transposed, v), [do]), found, strict=True):
        assert torch.equal(own, other)


def test_varlen_attn_of_torch(overridden: None) -> None:
    """The gradient of a row outside all sequences is 0."""
    q, k, v = random(12, 4, 16), random(12, 2, 16), random(12, 2, 16)
    for window_size in ((-1, -1), (-1, 0)):
        semantics = {"cu_seqlens_q": CU, "cu_seqlens_k": CU, "window_size": window_size}

        def own(*t: torch.Tensor, window_size: tuple[int, int] = window_size) -> Any:
            return varlen_attn(*t, CU, CU, 7, 7, window_size=window_size, enable_gqa=True)

        assert_gradients(
            own,
            lambda *t, s=semantics: reference_varlen(*t, compute=t[0].dtype, **s)[0],
            q, k, v,
        )  # fmt: skip
        with memory_of_nan():
            assert all((t[10:] == 0).all() for t in gradients_of(own, (q, k, v), [q]))


@contextmanager
def memory_of_nan() -> Iterator[None]:
    """Fills new tensors with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_windows_and_the_scale_reach_the_gradients_of_torch_s_flash_operator(
    overridden: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(torch_sdpa, "run_backward", lambda *arguments, **_: told.extend(arguments))
    q, lse, unused = random(1, 9, 2, 16), torch.zeros(1, 9, 2).transpose(1, 2), torch.empty(0)
    ATEN._flash_attention_backward(
        *(q,) * 5, lse, None, None, 9, 9, 0.0, True, unused, unused,
        scale=0.3, window_size_left=2, window_size_right=1,
    )  # fmt: skip
    tensors, spec = told
    assert tensors.lse.is_contiguous()
    assert spec == AttentionSpec(causal=True, softmax_scale=0.3, window_size=(2, 1))


def test_writing_into_a_tensor_is_no_obstacle_to_tensors_that_require_a_gradient(
    overridden: None,
) -> None:
    """torch has no gradient of this operator, and raises an error when one is requested."""
    q, into = random(1, 9, 2, 16).requires_grad_(), torch.zeros(1, 9, 2, 16).half()
    arguments = (None, None, 9, 9, 0.0, False, False)
    ATEN._flash_attention_forward_no_dropout_inplace(into, q, q, q, *arguments)
    assert torch.equal(into, ATEN._flash_attention_forward(q, q, q, *arguments)[0])


# ---- transformers ----


@pytest.mark.parametrize(
    ("model", "padding"),
    [("bert", "left"), ("llama", "right"), ("llama", "no padding"), ("gpt_oss", "no padding")],
)
def test_models_of_transformers_train(model: str, padding: str) -> None:
    """The sinks get gradients too, since they are parameters."""
    integration = pytest.importorskip("flashsmith.integrations.transformers")
    mask = PADDING[padding]
    assert_gradients_as_eager(
        tiny_model(model), integration.register(), mask, input_ids=IDS, attention_mask=mask
    )


@pytest.mark.parametrize("way", ["compiled", "checkpointed"])
def test_a_model_has_the_same_gradients_each_way_that_it_can_be_trained(way: str) -> None:
    """The model is compiled into one graph, or computes again what it did not keep."""
    integration = pytest.importorskip("flashsmith.integrations.transformers")
    model = tiny_model("llama").half().train()
    model.set_attn_implementation(integration.register())

    def gradients(call: Any) -> list[torch.Tensor]:
        model.zero_grad()
        hidden = call(input_ids=IDS, use_cache=False).last_hidden_state
        (hidden.float() * weights[: hidden.numel()].view(hidden.shape)).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    weights = torch.randn(IDS.numel() * model.config.hidden_size)
    expected, trained = gradients(model), model
    if way == "compiled":
        torch._dynamo.reset()
        trained = torch.compile(model, fullgraph=True, backend="aot_eager")
    else:
        model.gradient_checkpointing_enable()
    for found, own in zip(gradients(trained), expected, strict=True):
        if way == "compiled":  # compiled, a bias replaces the mask and rounds differently
            torch.testing.assert_close(found, own, rtol=2e-2, atol=2e-2 * own.abs().max().item())
        else:
            assert torch.equal(found, own)


def test_a_position_bias_of_transformers_has_a_gradient() -> None:
    integration = pytest.importorskip("flashsmith.integrations.transformers")
    keys = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()

    def own(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> Any:
        module = torch.nn.Module()
        return integration.attention_forward(
            module, q, k, v, keys, is_causal=False, position_bias=bias
        )[0]

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> Any:
        hidden = torch.zeros(2, 1, 1, 5, dtype=q.dtype).masked_fill(
            ~keys[:, None, None], -torch.inf
        )
        return F.scaled_dot_product_attention(q, k, v, bias + hidden).transpose(1, 2)

    tensors = (*(random(2, 3, 5, 16) for _ in range(3)), random(1, 3, 5, 5))
    assert_gradients(own, plain, *tensors, shapes=[(2, 5, 3, 16)])
