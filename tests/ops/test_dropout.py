"""Dropout through ``attention``: the origin of its RNG state, its users, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import flashsmith
from flashsmith.configs import KernelId, Sm80SumsBackwardKernelConfig, Variant
from flashsmith.configs.registry import BACKWARD
from flashsmith.configs.workload import BackwardWorkload
from flashsmith.problem import Problem
from flashsmith.reference import dropout_mask, reference_attention, reference_gradients
from flashsmith.selection.select import select_config
from support.dropout import STATE

P = 0.3
DROPPING: dict[str, Any] = {"dropout_p": P, "rng_state": STATE}


def tensors(n_q: int = 40, n_k: int = 50, heads_kv: int = 2) -> list[torch.Tensor]:
    shapes = (n_q, 2), (n_k, heads_kv), (n_k, heads_kv)
    return [torch.randn(2, n, heads, 64).half().requires_grad_() for n, heads in shapes]


def attend(*qkv: torch.Tensor, **keywords: Any) -> torch.Tensor:
    o = flashsmith.attention(*qkv, **({"dropout_p": P} | keywords))
    assert isinstance(o, torch.Tensor)
    return o


def gradients(o: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(torch.autograd.grad(o, leaves, torch.ones_like(o)))


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.double() - expected).abs().max() < 0.01 * max(1, expected.abs().max().item())


def test_manual_seed_makes_the_same_masks_and_calls_draw_new_ones() -> None:
    qkv = tensors()
    torch.manual_seed(7)
    first, second = attend(*qkv), attend(*qkv)
    torch.manual_seed(7)
    assert torch.equal(attend(*qkv), first) and torch.equal(attend(*qkv), second)
    assert not torch.equal(first, second)


def test_nothing_is_drawn_where_nothing_is_dropped() -> None:
    qkv = tensors()
    before = torch.get_rng_state()
    o = attend(*qkv, dropout_p=0.0)
    assert torch.equal(o, attend(*qkv, dropout_p=0, rng_state=STATE))
    attend(*qkv, rng_state=STATE)
    assert torch.equal(torch.get_rng_state(), before)


def test_gradients_are_of_the_weights_that_were_kept() -> None:
    qkv = tensors(heads_kv=1)
    o = attend(*qkv, rng_state=STATE, causal=True)
    plain = [t.detach() for t in qkv]
    given: dict[str, Any] = {**DROPPING, "causal": True}
    assert_near(o, reference_attention(*plain, **given))
    exact = reference_gradients(*plain, torch.ones_like(o), **given)
    for found, right in zip(gradients(o, qkv), (exact.q, exact.k, exact.v), strict=True):
        assert_near(found, right)


def test_a_score_function_and_dropout_do_not_mind_each_other() -> None:
    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * 0.5 + (q_idx - kv_idx) * 0.01

    qkv = tensors()
    o = attend(*qkv, rng_state=STATE, score_mod=score_mod)
    plain, given = [t.detach() for t in qkv], DROPPING | {"score_mod": score_mod}
    assert_near(o, reference_attention(*plain, **given))
    exact = reference_gradients(*plain, torch.ones_like(o), **given)
    for found, right in zip(gradients(o, qkv), (exact.q, exact.k, exact.v), strict=True):
        assert_near(found, right)


def test_a_checkpoint_computes_again_with_the_same_mask() -> None:
    qkv = tensors()
    torch.manual_seed(1)
    o = attend(*qkv)
    torch.manual_seed(1)
    again: Any = checkpoint(attend, *qkv, use_reentrant=False)
    assert torch.equal(o, again)
    found = zip(gradients(o, qkv), gradients(again, qkv), strict=True)
    assert all(torch.equal(a, b) for a, b in found)


def test_the_state_and_the_probability_may_change_from_call_to_call() -> None:
    """A repeated call is not checked again, but must read both anew."""
    qkv, state = [t.detach() for t in tensors()], STATE.clone()
    leaves = [t.clone().requires_grad_() for t in qkv]
    for step, p in ((0, P), (1, P), (2, 0.6), (3, P)):
        state[1] += step
        given: dict[str, Any] = {"dropout_p": p, "rng_state": state}
        assert_near(attend(*qkv, **given), reference_attention(*qkv, **given))
        o = attend(*leaves, **given)
        exact = reference_gradients(*qkv, torch.ones_like(o), **given)
        assert_near(gradients(o, leaves)[2], exact.v)


def test_the_library_s_parts_take_the_state() -> None:
    q, k, v = (t.detach() for t in tensors())
    config = select_config(q)
    o, lse = flashsmith.forward(config, q, k, v, return_lse=True, **DROPPING)
    assert_near(o, reference_attention(q, k, v, **DROPPING))
    found: Any = flashsmith.backward(None, torch.ones_like(o), q, k, v, o, lse, **DROPPING)
    exact = reference_gradients(q, k, v, torch.ones_like(o), **DROPPING)
    for own, right in zip(found[:3], (exact.q, exact.k, exact.v), strict=True):
        assert_near(own, right)


def test_a_compiled_function_has_one_mask_for_forward_and_backward() -> None:
    """The weights are in both the result and the gradient of v, since v = I."""
    q, k, v = (t.detach() for t in tensors(n_k=64))
    v = torch.eye(64).half()[None, :, None].repeat(2, 1, 2, 1)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    compiled = torch.compile(attend, fullgraph=True)
    torch.manual_seed(3)
    o, other = compiled(*leaves), compiled(*leaves)
    torch.manual_seed(3)
    assert torch.equal(compiled(*leaves), o) and not torch.equal(o, other)
    assert 0.25 < (o == 0).float().mean() < 0.35
    do = torch.randn_like(o)
    (dv,) = torch.autograd.grad(o, leaves[2], do)
    assert_near(dv, torch.einsum("bqhk,bqhd->bkhd", o.double(), do.double()))
    given = torch.compile(lambda *qkv: attend(*qkv, rng_state=STATE), fullgraph=True)
    assert torch.equal(given(*leaves), attend(*leaves, rng_state=STATE))


def test_the_heuristics_have_kernels_for_dropout() -> None:
    """Every family's heuristic chooses the same configuration with dropout, and it is legal; one
    family lacks the registers and leaves dropout to the others."""
    variant = Variant(dropout=True)
    for family in BACKWARD.families:
        config = family.heuristic(BackwardWorkload.square(flashsmith.DType.BF16, 128, 4096))
        assert config.adapted_to(variant) == config
        assert config.serves_variant(variant) == (family.config is not Sm80SumsBackwardKernelConfig)
        assert KernelId(config, variant).name.endswith(" dropout")
    for capability in ((8, 0), (9, 0)):
        problem = Problem.square(flashsmith.DType.BF16, 128, 1, 1, 4096)
        chosen = BACKWARD.choose_by_heuristic(BackwardWorkload(problem, variant), capability)
        assert chosen.serves_variant(variant)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"dropout_p": 1.0}, ValueError, r"dropout_p is 1\.0; expected a number from 0 to below 1"),
    ({"dropout_p": -0.5}, ValueError, r"dropout_p is -0\.5"),
    ({"dropout_p": float("nan")}, ValueError, "dropout_p is nan"),
    ({"dropout_p": "0.5"}, TypeError, r"dropout_p is '0\.5'; expected a float"),
    ({"dropout_p": True}, TypeError, "dropout_p is True; expected a float"),
    ({"rng_state": [1, 2]}, TypeError, "rng_state is a list; expected a torch.Tensor"),
    ({"rng_state": STATE.int()}, TypeError, "rng_state has dtype int32; it must be int64"),
    (
        {"rng_state": STATE[:1]},
        ValueError,
        r"rng_state has shape \(1\); .* \(seed and offset\) = \(2\)",
    ),
    ({"rng_state": torch.zeros(2, 2).long()}, ValueError, r"rng_state has shape \(2, 2\)"),
    ({"rng_state": torch.zeros(4).long()[::2]}, ValueError, "it must be contiguous"),
]


@pytest.mark.parametrize("with_gradient", [False, True])
@pytest.mark.parametrize(("changes", "error", "words"), BAD, ids=[w for _, _, w in BAD])
def test_bad_dropout_is_refused(
    changes: dict[str, Any], error: type[Exception], words: str, with_gradient: bool
) -> None:
    qkv = tensors() if with_gradient else [t.detach() for t in tensors()]
    with pytest.raises(error, match=words):
        attend(*qkv, **changes)


def test_a_call_that_does_not_draw_needs_a_state() -> None:
    q, k, v = (t.detach() for t in tensors())
    with pytest.raises(ValueError, match=r"rng_state is None, but dropout_p is 0\.3"):
        flashsmith.forward(select_config(q), q, k, v, dropout_p=P)
    lse = torch.zeros(2, 2, 40)
    with pytest.raises(ValueError, match=r"rng_state is None, but dropout_p is 0\.3"):
        flashsmith.backward(None, q, q, k, v, q, lse, dropout_p=P)


def test_the_mask_is_that_of_the_library() -> None:
    """The mask is public as `flashsmith.dropout_mask`."""
    kept = flashsmith.dropout_mask(STATE, P, (2, 2, 40, 50))
    assert torch.equal(kept, dropout_mask(STATE, P, (2, 2, 40, 50)))
    q, k, v = (t.detach() for t in tensors())
    s = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) / 8
    weights = s.softmax(-1) * kept * flashsmith.dropout_scale(P)
    assert_near(
        attend(q, k, v, rng_state=STATE), torch.einsum("bhqk,bkhd->bqhd", weights, v.float())
    )
