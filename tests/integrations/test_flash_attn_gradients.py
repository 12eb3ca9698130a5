"""Gradients of FlashAttention's functions, high-level and low-level, on emulated kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flashsmith.flash_attn as flash
from flashsmith.flash_attn import calls, flash_attn_interface
from flashsmith.ops import backward
from flashsmith.ops.backward import run_backward
from flashsmith.ops.spec import AttentionSpec
from flashsmith.reference import reference_varlen
from support.differentiation import assert_gradients, gradients_of
from support.trained import build_for_training

CU_Q = torch.tensor([0, 3, 3, 10], dtype=torch.int32)
CU_K = torch.tensor([0, 5, 9, 16], dtype=torch.int32)
LENGTHS = (CU_Q, CU_K, 7, 7)
SEMANTICS: list[dict[str, Any]] = [{}, {"causal": True}]
PACKED = {"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K}


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    build_for_training(
        "padded", "varlen+padded", "causal+padded", "causal+varlen+padded", "causal+sinks+padded"
    )


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **semantics: Any) -> Any:
    """Computes attention in plain torch, in the dtype of q."""
    return reference_varlen(q, k, v, compute=q.dtype, **semantics)[0]


@pytest.fixture(params=SEMANTICS, ids=lambda s: "+".join(s) or "plain")
def semantics(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_dense_functions(semantics: dict[str, Any]) -> None:
    """The gradient of a packed tensor has the packed shape."""
    q, k, v = random(2, 70, 4, 16), random(2, 75, 2, 16), random(2, 75, 2, 16)
    assert_gradients(
        lambda *t: flash.flash_attn_func(*t, **semantics),
        lambda *t: plain(*t, **semantics),
        q, k, v,
    )  # fmt: skip
    assert_gradients(
        lambda q, kv: flash.flash_attn_kvpacked_func(q, kv, **semantics),
        lambda q, kv: plain(q, *kv.unbind(2), **semantics),
        q, torch.stack([k, v], 2),
    )  # fmt: skip
    assert_gradients(
        lambda qkv: flash.flash_attn_qkvpacked_func(qkv, **semantics),
        lambda qkv: plain(*qkv.unbind(2), **semantics),
        random(2, 70, 3, 4, 16),
        shapes=[(2, 70, 4, 16)],
    )


def test_functions_of_packed_sequences(semantics: dict[str, Any]) -> None:
    q, kv = random(10, 4, 16), random(16, 2, 2, 16)
    assert_gradients(
        lambda *t: flash.flash_attn_varlen_func(*t, *LENGTHS, **semantics),
        lambda *t: plain(*t, **PACKED, **semantics),
        q, *kv.unbind(1),
    )  # fmt: skip
    assert_gradients(
        lambda q, kv: flash.flash_attn_varlen_kvpacked_func(q, kv, *LENGTHS, **semantics),
        lambda q, kv: plain(q, *kv.unbind(1), **PACKED, **semantics),
        q, kv,
    )  # fmt: skip
    assert_gradients(
        lambda qkv: flash.flash_attn_varlen_qkvpacked_func(qkv, CU_Q, 7, **semantics),
        lambda qkv: plain(*qkv.unbind(1), cu_seqlens_q=CU_Q, cu_seqlens_k=CU_Q, **semantics),
        random(10, 3, 4, 16),
        shapes=[(10, 4, 16)],
    )


def test_heads_of_any_size_and_the_log_sum_exp() -> None:
    """The scale depends on the caller's d_head, and the padding of rows has no gradient."""
    q, k, v = random(1, 9, 2, 20), random(1, 11, 2, 20), random(1, 11, 2, 20)

    def both(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        o, lse = reference_varlen(q, k, v, compute=q.dtype)
        return o, lse

    assert_gradients(
        lambda *t: flash.flash_attn_func(*t, return_lse=True), both, q, k, v,
        shapes=[q.shape, (1, 2, 9)],
    )  # fmt: skip


def test_gradients_of_sinks_have_their_dtype() -> None:
    q, k, v = (random(1, 9, 2, 16) for _ in range(3))
    assert_gradients(
        lambda q, k, v, sinks: flash.flash_attn_func(q, k, v, causal=True, sinks=sinks),
        lambda q, k, v, sinks: plain(q, k, v, causal=True, sinks=sinks),
        q, k, v, random(2),
    )  # fmt: skip


def test_tensors_with_gaps_between_elements() -> None:
    q = random(1, 9, 2, 32)
    assert_gradients(
        lambda t: flash.flash_attn_func(*(t[..., ::2],) * 3),
        lambda t: plain(*(t[..., ::2],) * 3),
        q,
        shapes=[(1, 9, 2, 16)],
    )


def test_gradients_that_have_strides_of_their_own() -> None:
    """The gradient of a sum is one element, expanded."""
    tensors = [random(1, 9, 2, 16) for _ in range(3)]
    ones = torch.ones(1, 9, 2, 16).half(), torch.ones(1, 2, 9)

    def attend(*t: torch.Tensor) -> Any:
        return flash.flash_attn_func(*t, causal=True, return_lse=True)

    expected = gradients_of(attend, tensors, ones)
    expanded = torch.ones(1).half().expand(1, 9, 2, 16), torch.ones(1).expand(1, 2, 9)
    odd_strides = torch.ones(1, 9, 2, 17).half()[..., :16], ones[1]
    misaligned = torch.ones(4 + ones[0].numel()).half()[4:].view(1, 9, 2, 16), ones[1]
    for do in (expanded, odd_strides, misaligned):
        for found, own in zip(gradients_of(attend, tensors, do), expected, strict=True):
            assert torch.equal(found, own)


@pytest.mark.parametrize("deterministic", [False, True])
def test_deterministic_is_passed_on(monkeypatch: pytest.MonkeyPatch, deterministic: bool) -> None:
    given = []

    def recorded(*arguments: Any, deterministic: bool, **keywords: Any) -> Any:
        given.append(deterministic)
        return run_backward(*arguments, deterministic=deterministic, **keywords)

    monkeypatch.setattr(backward, "run_backward", recorded)
    q = random(1, 9, 2, 16).requires_grad_()
    flash.flash_attn_func(q, q, q, deterministic=deterministic).sum().backward()
    assert given == [deterministic]


def test_out_cannot_be_given_where_a_gradient_is_needed() -> None:
    q = random(1, 9, 2, 16).requires_grad_()
    with pytest.raises(ValueError, match=r"out is a tensor; .* gradient is made anew: pass None"):
        flash.flash_attn_func(q, q, q, out=torch.empty_like(q))


def test_a_compiled_graph() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flash.flash_attn_func(q, k, v, causal=True)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for length in (5, 70):
        tensors, do = [random(1, length, 2, 16) for _ in range(3)], [random(1, length, 2, 16)]
        for found, own in zip(
            gradients_of(compiled, tensors, do), gradients_of(attend, tensors, do), strict=True
        ):
            assert torch.equal(found, own)


# ---- the low-level functions ----


def low_level(
    do: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    causal: bool = False,
) -> list[torch.Tensor]:
    """Returns softmax_d, dq, dk and dv of ``_flash_attn_backward``, which writes over NaN."""
    into = [torch.full_like(t, torch.nan) for t in (q, k, v)]
    softmax_d = flash_attn_interface._flash_attn_backward(
        do, q, k, v, out, lse, *into, 0.0, None, causal, -1, -1, 0.0, None, False
    )
    return [softmax_d, *into]


def test_gradients_are_written_where_the_caller_says() -> None:
    """The gradients may be parts of one tensor; a gradient that is None is not written."""
    q, k, v, do = (random(2, 9, 2, 16) for _ in range(4))
    expected = gradients_of(lambda *t: flash.flash_attn_func(*t, causal=True), (q, k, v), [do])
    out, lse = flash.flash_attn_func(q, k, v, causal=True, return_lse=True)
    dqkv = torch.full((2, 9, 3, 2, 16), torch.nan).half()
    arguments = (0.0, None, True, -1, -1, -1.0, None, True)
    softmax_d = flash_attn_interface._flash_attn_backward(
        do, q, k, v, out, lse, *dqkv.unbind(2), *arguments
    )
    for found, own in zip(dqkv.unbind(2), expected, strict=True):
        assert torch.equal(found, own)
    torch.testing.assert_close(softmax_d, (do.float() * out).sum(-1).transpose(1, 2))
    dk = torch.empty_like(k)
    flash_attn_interface._flash_attn_backward(do, q, k, v, out, lse, None, dk, None, *arguments)
    assert torch.equal(dk, expected[1])


def test_all_that_the_functions_below_are_told_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = []
    monkeypatch.setattr(calls, "run_backward", lambda *a, **k: told.append((*a, k)))
    q, slopes = random(10, 2, 16), torch.rand(2)
    lse = torch.zeros(1, 10, 2).transpose(1, 2)
    options = (0.0, 0.3, True, 3, 0, 5.0, slopes, True)
    flash_attn_interface._flash_attn_backward(
        *(q[None],) * 5, lse, None, None, q[None], *options, None
    )
    flash_attn_interface._flash_attn_varlen_backward(
        *(q,) * 5, lse[0], q, None, None, CU_Q, CU_Q, torch.tensor(7), 8, *options
    )
    dense, packed = told
    semantics = {"window_size": (3, 0), "softcap": 5.0, "alibi_slopes": slopes}
    lengths = {"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_Q, "max_seqlen_q": 7, "max_seqlen_k": 8}
    for (tensors, spec, keywords), expected, absent in (
        (dense, semantics, [True, True, False]),
        (packed, semantics | lengths, [False, True, True]),
    ):
        assert tensors.lse.is_contiguous()
        assert spec == AttentionSpec(causal=True, softmax_scale=0.3, **expected)
        assert keywords["deterministic"] and [t is None for t in tensors[6:9]] == absent


def test_parts_of_the_keys_add_up() -> None:
    """Ring attention works so: each part of the keys gets the output and LSE of all keys."""
    q, k, v, do = (
        random(1, 9, 2, 16),
        random(1, 14, 2, 16),
        random(1, 14, 2, 16),
        random(1, 9, 2, 16),
    )
    out, lse = flash.flash_attn_func(q, k, v, return_lse=True)
    _, dq, dk, dv = low_level(do, q, k, v, out, lse)
    first = low_level(do, q, k[:, :6], v[:, :6], out, lse)
    second = low_level(do, q, k[:, 6:], v[:, 6:], out, lse)
    torch.testing.assert_close(first[1] + second[1], dq, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(torch.cat([first[2], second[2]], 1), dk, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(torch.cat([first[3], second[3]], 1), dv, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("zero_tensors", [False, True])
def test_rows_that_no_sequence_has_stay_unless_they_are_to_be_zero(zero_tensors: bool) -> None:
    """These rows are NaN, and their gradients are 7 before the call."""
    q, k, v, do = random(12, 4, 16), random(18, 2, 16), random(18, 2, 16), random(12, 4, 16)
    for t, used in ((q, 10), (k, 16), (v, 16), (do, 10)):
        t[used:] = torch.nan
    out, lse = flash.flash_attn_varlen_func(q, k, v, *LENGTHS, causal=True, return_lse=True)
    into = [torch.full_like(t, 7) for t in (q, k, v)]
    softmax_d = flash_attn_interface._flash_attn_varlen_backward(
        do, q, k, v, out, lse, *into, *LENGTHS, 0.0, None, True, -1, -1, 0.0, None, False,
        zero_tensors=zero_tensors,
    )  # fmt: skip
    expected = gradients_of(
        lambda *t: flash.flash_attn_varlen_func(*t, *LENGTHS, causal=True),
        (q[:10], k[:16], v[:16]),
        [do[:10]],
    )
    for found, own in zip(into, expected, strict=True):
        assert torch.equal(found[: len(own)], own)
        assert (found[len(own) :] == (0 if zero_tensors else 7)).all()
    assert softmax_d.shape == (4, 12) and softmax_d[:, :10].isfinite().all()
