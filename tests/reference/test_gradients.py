"""The reference's gradients against torch's, against finite differences, and against identities."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashsmith.reference import reference_attention, reference_gradients, reference_lse

BATCH, HEADS, HEADS_KV, D_HEAD, D_V = 2, 4, 2, 8, 6
N_Q, N_K = 5, 7
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
MEANINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (2, 1), "softmax_scale": 0.7},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi_slopes": torch.tensor([[0.1, 0.2, -0.3, 0.4]] * BATCH)},
    "bias of all": {"bias": torch.randn(BATCH, HEADS, N_Q, N_K).double()},
    "bias of a head": {"bias": torch.randn(1, HEADS, 1, N_K).double()},
    "sinks": {"sinks": torch.randn(HEADS).double()},
    "a function": {"score_mod": lambda s, b, h, i, j: s * (1 + h) - 0.1 * (i - j) * s.tanh()},
    "all of it": {
        "causal": True, "softcap": 2.0, "alibi_slopes": torch.full((HEADS,), 0.2),
        "bias": torch.randn(BATCH, 1, N_Q, N_K).double(), "sinks": torch.randn(HEADS).double(),
    },
}  # fmt: skip


def random(n_q: int = N_Q, n_k: int = N_K, heads_kv: int = HEADS_KV) -> Tensors:
    q, k = torch.randn(BATCH, n_q, HEADS, D_HEAD), torch.randn(BATCH, n_k, heads_kv, D_HEAD)
    v, do = torch.randn(BATCH, n_k, heads_kv, D_V), torch.randn(BATCH, n_q, HEADS, D_V)
    return q.double(), k.double(), v.double(), do.double()


def leaves_of(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    return [None if t is None else t.clone().requires_grad_() for t in tensors]


@pytest.mark.parametrize("name", MEANINGS)
def test_they_are_those_of_torch_where_every_query_sees_a_key(name: str) -> None:
    q, k, v, do = random()
    given = MEANINGS[name]
    dlse = torch.randn(BATCH, HEADS, N_Q).double()
    q_, k_, v_, sinks, bias = leaves_of(q, k, v, given.get("sinks"), given.get("bias"))
    assert q_ is not None and k_ is not None and v_ is not None
    own = given | {n: t for n, t in {"sinks": sinks, "bias": bias}.items() if t is not None}
    loss = (reference_attention(q_, k_, v_, **own) * do).sum()
    loss = loss + (reference_lse(q_, k_, **own) * dlse).sum()
    loss.backward()
    found = reference_gradients(q, k, v, do, dlse=dlse, **given)
    for name_of, leaf in {"q": q_, "k": k_, "v": v_, "sinks": sinks, "bias": bias}.items():
        gradient = getattr(found, name_of)
        if leaf is None:
            assert gradient is None
        else:
            assert leaf.grad is not None and gradient.shape == leaf.shape
            torch.testing.assert_close(gradient, leaf.grad)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, given: dict[str, Any]) -> Any:
        ctx.save_for_backward(q, k, v)
        ctx.given = given
        return reference_attention(q, k, v, **given), reference_lse(q, k, **given)

    @staticmethod
    def backward(ctx: Any, do: Any, dlse: Any) -> Any:  # type: ignore[override]
        found = reference_gradients(*ctx.saved_tensors, do, dlse=dlse, **ctx.given)
        return found.q, found.k, found.v, None


@pytest.mark.parametrize("name", MEANINGS)
def test_they_are_the_limits_of_differences(name: str) -> None:
    """The derivatives of o and of the LSE are checked in random directions."""
    q, k, v = (t.requires_grad_() for t in random()[:3])
    torch.autograd.gradcheck(
        lambda *t: _Attention.apply(*t, MEANINGS[name]), (q, k, v), fast_mode=True
    )


@pytest.mark.parametrize("given", [{"causal": True}, {"causal": True, "softcap": 1.0}])
def test_queries_that_see_nothing_give_zeros(given: dict[str, Any]) -> None:
    q, k, v, do = random(n_q=6, n_k=2)
    found = reference_gradients(q, k, v, do, **given)
    assert not found.q[:, :4].any() and found.q[:, 4:].any()
    alone = reference_gradients(q[:, 4:], k, v, do[:, 4:], **given)
    torch.testing.assert_close(found.k, alone.k)
    torch.testing.assert_close(found.v, alone.v)


def test_what_holds_without_a_reference() -> None:
    """The weights of a query sum to 1, whatever is added to all keys."""
    q, k, v, do = random(heads_kv=HEADS)
    found = reference_gradients(q, k, v, do)
    zero = torch.zeros(BATCH, HEADS, D_HEAD).double()
    torch.testing.assert_close(found.k.sum(1), zero, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.v.sum(1), do.sum(1))
    moved = reference_gradients(q, k + torch.randn(D_HEAD).double(), v, do)
    torch.testing.assert_close(moved.q, found.q)
    equal = reference_gradients(q, k[:, :1].expand_as(k), v, do)
    torch.testing.assert_close(equal.q, torch.zeros_like(q), atol=1e-12, rtol=0)
    order = torch.randperm(N_K)
    permuted = reference_gradients(q, k[:, order], v[:, order], do)
    torch.testing.assert_close(permuted.k, found.k[:, order])
    torch.testing.assert_close(permuted.v, found.v[:, order])


def test_they_are_linear_in_the_gradient_of_o() -> None:
    q, k, v, do = random()
    other = torch.randn_like(do)
    one, two = (reference_gradients(q, k, v, t, causal=True) for t in (do, other))
    both = reference_gradients(q, k, v, 2 * do + other, causal=True)
    for name in ("q", "k", "v"):
        expected = 2 * getattr(one, name) + getattr(two, name)
        torch.testing.assert_close(getattr(both, name), expected)


def test_halves_of_the_keys_add_up_if_they_know_the_whole() -> None:
    """Context parallelism relies on this: a part of the keys has the gradients of the whole if do
    is scaled by the part's share of the weights, and dlse is the pull of the values of the other
    half."""
    q, k, v, do = random(heads_kv=HEADS)
    whole = reference_gradients(q, k, v, do)
    total, o = reference_lse(q, k), reference_attention(q, k, v)
    for part in (slice(0, 3), slice(3, N_K)):
        own_lse = reference_lse(q, k[:, part])
        share = (own_lse - total).exp().transpose(1, 2)[..., None]
        own_o = reference_attention(q, k[:, part], v[:, part])
        pull = ((do * (own_o - o)) * share).sum(-1).transpose(1, 2)
        found = reference_gradients(q, k[:, part], v[:, part], do * share, dlse=pull)
        torch.testing.assert_close(found.k, whole.k[:, part])
        torch.testing.assert_close(found.v, whole.v[:, part])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_near(dtype: torch.dtype) -> None:
    q, k, v, do = (t.to(dtype) for t in random())
    exact = reference_gradients(q, k, v, do, causal=True)
    rounded = reference_gradients(q, k, v, do, causal=True, compute=dtype)
    for name in ("q", "k", "v"):
        truth, found = getattr(exact, name), getattr(rounded, name)
        assert found.dtype == dtype
        assert 0 < (found.double() - truth).norm() < 0.05 * truth.norm()


def test_nothing_is_asked_of_the_arguments() -> None:
    """The arguments may or may not be part of a graph."""
    q, k, v, do = random()
    expected = reference_gradients(q, k, v, do, **MEANINGS["all of it"])
    with torch.no_grad():
        found = reference_gradients(q.requires_grad_(), k, v, do, **MEANINGS["all of it"])
    torch.testing.assert_close(found.q, expected.q)
    assert not found.q.requires_grad and q.grad is None
