"""Dropout through the functions of other libraries, with its gradients, on emulated kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import flashsmith
import flashsmith.flash_attn as flash
from flashsmith.flash_attn import flash_attn_interface
from flashsmith.integrations import torch_sdpa
from flashsmith.reference import dropout_mask
from support.models import IDS, tiny_model
from support.trained import build_for_training

ATEN = torch.ops.aten
P = 0.25
CU_Q = torch.tensor([0, 3, 3, 10], dtype=torch.int32)
CU_K = torch.tensor([0, 5, 9, 16], dtype=torch.int32)
LENGTHS = (CU_Q, CU_K, 7, 7)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    build_for_training(
        "padded+dropout", "causal+padded+dropout", "causal+varlen+padded+dropout",
        "causal+window+softcap+padded+dropout", "bias+padded+dropout", "causal+padded",
    )  # fmt: skip


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half().requires_grad_()


def with_weights(kept: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    """Returns causal softmax(q k^T) v in float64 with the kept weights; tensors are (batch,
    seq_len, heads, d)."""
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = q @ k.mT * q.shape[-1] ** -0.5
    ahead = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 + s.shape[-1] - s.shape[-2])
    p = s.masked_fill(ahead, -torch.inf).softmax(-1) * kept / (1 - P)
    return (p @ v).transpose(1, 2)


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert (found.double() - expected).abs().max() < 0.01 * max(1, expected.abs().max().item())


def assert_same_gradients(o: torch.Tensor, expected: torch.Tensor, *leaves: torch.Tensor) -> None:
    assert_near(o, expected)
    do = torch.randn_like(o)
    found = torch.autograd.grad(o, leaves, do)
    for own, right in zip(found, torch.autograd.grad(expected, leaves, do.double()), strict=True):
        assert_near(own, right)


# ---- FlashAttention ----


def test_dense_functions_and_the_weights_that_they_return() -> None:
    q, k, v = random(2, 30, 4, 16), random(2, 40, 2, 16), random(2, 40, 2, 16)
    out, _, signed = flash.flash_attn_func(q, k, v, P, causal=True, return_attn_probs=True)
    kept = signed >= 0
    assert signed.shape == (2, 4, 30, 40) and signed.dtype == q.dtype
    assert_near(signed.abs().double().sum(-1), torch.ones(2, 4, 30))
    assert_same_gradients(out, with_weights(kept, q, k, v), q, k, v)
    torch.manual_seed(3)
    first = flash.flash_attn_func(q, k, v, P, causal=True)
    torch.manual_seed(3)
    packed = flash.flash_attn_kvpacked_func(q, torch.stack([k, v], 2), P, causal=True)
    assert torch.equal(packed, first) and not torch.equal(first, out)


def test_packed_functions_and_the_weights_that_they_return() -> None:
    q, k, v = random(10, 4, 16), random(16, 2, 16), random(16, 2, 16)
    out, _, signed = flash.flash_attn_varlen_func(
        q, k, v, *LENGTHS, P, causal=True, return_attn_probs=True
    )
    assert signed.shape == (3, 4, 7, 7) and (signed[1] == 0).all()
    expected = torch.zeros(10, 4, 16).double()
    ends_q, ends_k = (places.unfold(0, 2, 1).tolist() for places in (CU_Q, CU_K))
    for weights, of_q, of_k in zip(signed, ends_q, ends_k, strict=True):
        rows, keys = slice(*of_q), slice(*of_k)
        kept = weights[None, :, : of_q[1] - of_q[0], : of_k[1] - of_k[0]] >= 0
        own = with_weights(kept, q[None, rows], k[None, keys], v[None, keys])[0]
        expected = expected.index_put((torch.arange(*of_q),), own)
    assert_same_gradients(out, expected, q, k, v)


def test_weights_are_returned_of_all_that_changes_scores() -> None:
    q, k, v = (random(1, 20, 2, 16).detach() for _ in range(3))
    out, _, signed = flash.flash_attn_func(
        q, k, v, P, causal=True, window_size=(7, 0), softcap=2.0, return_attn_probs=True
    )
    own = signed.clamp(min=0).double() / (1 - P) @ v.double().transpose(1, 2)
    assert_near(out, own.transpose(1, 2))
    assert (signed.tril(-8) == 0).all() and (signed.triu(1) == 0).all()


def test_without_dropout_there_are_no_weights() -> None:
    q = random(1, 5, 2, 16).detach()
    assert flash.flash_attn_func(q, q, q, causal=True, return_attn_probs=True)[2].numel() == 0
    forward = flash_attn_interface._flash_attn_forward
    for p, returned in ((P, False), (0.0, True)):
        assert forward(q, q, q, p, None, True, -1, -1, 0.0, None, returned)[2].numel() == 0


@pytest.mark.parametrize("packed", [False, True])
def test_the_functions_below_share_a_state(packed: bool) -> None:
    q, k, v = (random(1, n, 2, 16).detach() for n in (7, 7, 7))
    do = torch.randn_like(q)
    rest = (P, None, True, -1, -1, 0.0, None)
    into = [torch.full_like(t, torch.nan) for t in (q, k, v)]
    if packed:
        lengths = (torch.tensor([0, 7], dtype=torch.int32),) * 2 + (7, 7)
        out, lse, signed, state = flash_attn_interface._flash_attn_varlen_forward(
            q[0], k[0], v[0], *lengths, *rest, return_softmax=True
        )
        flash_attn_interface._flash_attn_varlen_backward(
            do[0], q[0], k[0], v[0], out, lse, *(t[0] for t in into), *lengths, *rest, False, state
        )
        out = out[None]
    else:
        out, lse, signed, state = flash_attn_interface._flash_attn_forward(q, k, v, *rest, True)
        flash_attn_interface._flash_attn_backward(
            do, q, k, v, out, lse, *into, *rest, False, rng_state=state
        )
    kept = dropout_mask(state, P, (1, 2, 7, 7))
    assert ((signed < 0) <= ~kept).all() and (signed < 0).any()
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    expected = with_weights(kept, *leaves)
    assert_near(out, expected)
    for own, right in zip(into, torch.autograd.grad(expected, leaves, do.double()), strict=True):
        assert_near(own, right)


# ---- torch ----


@pytest.fixture
def overridden() -> Iterator[None]:
    override = torch_sdpa.override("CPU")
    yield
    override.remove()


def test_scaled_dot_product_attention_drops_beside_a_mask() -> None:
    q, k = random(2, 4, 7, 16), random(2, 4, 9, 16)
    v = torch.eye(9, 16).half().expand(2, 4, 9, 16)
    attn_mask = torch.rand(2, 1, 7, 9) < 0.7
    torch.manual_seed(1)
    state = torch.randint(1 << 62, (2,))
    torch.manual_seed(1)
    found = flashsmith.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p=P)
    whole = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask)
    kept = F.pad(dropout_mask(state, P, (2, 4, 7, 9)), (0, 7))
    assert_near(found, whole.nan_to_num() * kept / (1 - P))


def test_torch_s_operators_hand_the_state_to_the_backward(overridden: None) -> None:
    q, k, v = random(2, 4, 7, 16), random(2, 4, 7, 16), random(2, 4, 7, 16)
    out, *_, state, _, _ = ATEN._scaled_dot_product_flash_attention(q, k, v, P, True)
    kept = dropout_mask(state.view(torch.int64), P, (2, 4, 7, 7))
    of_rows = [t.transpose(1, 2) for t in (q, k, v)]
    assert_same_gradients(out, with_weights(kept, *of_rows).transpose(1, 2), q, k, v)
    rows = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in (q, k, v)]
    out, _, state, *_ = ATEN._flash_attention_forward(*rows, None, None, 7, 7, P, True, False)
    kept = dropout_mask(state.view(torch.int64), P, (2, 4, 7, 7))
    assert_same_gradients(out, with_weights(kept, *rows), *rows)


# ---- transformers ----


def test_a_model_drops_in_training_alone_and_again_in_a_checkpoint() -> None:
    integration = pytest.importorskip("flashsmith.integrations.transformers")
    model: Any = tiny_model("llama").half()
    model.set_attn_implementation(integration.register())

    def states(seed: int = 0) -> torch.Tensor:
        torch.manual_seed(seed)
        found: torch.Tensor = model(input_ids=IDS, use_cache=False).last_hidden_state
        return found

    whole = states()
    for layer in model.layers:
        layer.self_attn.attention_dropout = 0.5
    assert torch.equal(states(), whole)
    model.train()
    dropped = states()
    assert not torch.equal(dropped, whole) and not torch.equal(dropped, states(1))
    assert torch.equal(dropped, states())

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        states().float().square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    expected = gradients()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert all(torch.equal(a, b) for a, b in zip(gradients(), expected, strict=True))
