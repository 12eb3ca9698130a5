"""torch's scaled_dot_product_attention: flashsmith's function, and torch's own after the
override."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

from flashsmith.errors import FlashsmithError
from flashsmith.integrations import torch_sdpa
from flashsmith.integrations.sdpa import scaled_dot_product_attention
from flashsmith.reference import reference_varlen

pytestmark = pytest.mark.usefixtures("by_reference")
ATEN = torch.ops.aten
CU = torch.tensor([0, 3, 3, 10], dtype=torch.int32)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def inputs(heads_kv: int = 4, seq_len_k: int = 9) -> tuple[torch.Tensor, ...]:
    """Returns q, k and v as (batch, heads, seq_len, d_head)."""
    return (
        random(2, 4, 7, 16),
        random(2, heads_kv, seq_len_k, 16),
        random(2, heads_kv, seq_len_k, 16),
    )


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=2e-3, atol=2e-3)


def test_the_signature_is_that_of_torch() -> None:
    signature = inspect.signature(scaled_dot_product_attention)
    empty = inspect.Parameter.empty
    found = [p.replace(annotation=empty) for p in signature.parameters.values()]
    assert F.scaled_dot_product_attention.__doc__
    stated = " ".join(F.scaled_dot_product_attention.__doc__.partition("->")[0].split())
    assert f"scaled_dot_product_attention({', '.join(map(str, found))})" == stated


MASKS = {
    "none": lambda: None,
    "bool": lambda: torch.rand(2, 4, 7, 9) < 0.5,
    "bool of keys": lambda: torch.rand(1, 9) < 0.5,
    "bool of queries and keys": lambda: torch.rand(7, 9) < 0.5,
    "bool of batches and keys": lambda: torch.rand(2, 1, 1, 9) < 0.5,
    "bool of queries": lambda: torch.rand(2, 1, 7, 1) < 0.5,
    "numbers": lambda: random(2, 4, 7, 9),
    "numbers of heads": lambda: random(4, 7, 9),
}


@pytest.mark.parametrize("mask", MASKS)
def test_it_computes_what_torch_does(mask: str) -> None:
    q, k, v = inputs()
    attn_mask = MASKS[mask]()
    found = scaled_dot_product_attention(q, k, v, attn_mask, scale=0.4)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.float()
    expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask, scale=0.4)
    assert_equal(found, expected.nan_to_num())


@pytest.mark.parametrize("seq_len_k", [3, 7, 12])
def test_causal_attention_begins_at_the_top_left(seq_len_k: int) -> None:
    q, k, v = inputs(seq_len_k=seq_len_k)
    found = scaled_dot_product_attention(q, k, v, is_causal=True)
    assert_equal(
        found, F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
    )


def test_heads_may_be_shared_and_of_any_size() -> None:
    q, k, v = random(2, 4, 7, 20), random(2, 2, 9, 20), random(2, 2, 9, 13)
    found = scaled_dot_product_attention(q, k, v, enable_gqa=True)
    expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), enable_gqa=True)
    assert found.shape == (2, 4, 7, 13)
    assert_equal(found, expected)


Q = random(1, 4, 5, 16)
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"query": None}, TypeError, "query is a NoneType; expected a torch.Tensor"),
    ({"key": Q[0, 0, 0]}, ValueError, r"key has shape \(16,\); expected at least 2 dimensions"),
    (
        {"value": Q[0, 0], "enable_gqa": True},
        ValueError,
        r"value has shape \(5, 16\); expected at least 3 dimensions, of \(batch, heads",
    ),
    ({"dropout_p": 1.1}, ValueError, r"dropout_p is 1\.1; expected a number from 0 to below 1"),
    ({"dropout_p": True}, TypeError, "dropout_p is True; expected a float"),
    ({"is_causal": 1}, TypeError, "is_causal is 1; expected True or False"),
    ({"enable_gqa": None}, TypeError, "enable_gqa is None; expected True or False"),
    (
        {"key": Q[:, :2], "value": Q[:, :2]},
        ValueError,
        r"cannot be broadcast: query \(1, 4, 5, 16\), key \(1, 2, 5, 16\), .* pass enable_gqa=True",
    ),
    (
        {"key": torch.cat([Q, Q, Q]), "query": torch.cat([Q, Q]), "enable_gqa": True},
        ValueError,
        r"batch cannot be broadcast: query \(2, 4, 5, 16\), key \(3, 4, 5, 16\), .* d_head\)$",
    ),
    ({"scale": math.nan}, ValueError, "scale is nan; expected 0, or a number from 1e-37 to 1e"),
    ({"scale": -1e38}, ValueError, r"scale is -1e\+38; expected 0, or a number"),
    ({"scale": True}, TypeError, "scale is a bool; expected a float, or None"),
    ({"scale": "1"}, TypeError, "scale is a str; expected a float, or None"),
    (
        {"attn_mask": torch.ones(2, 1, 1, 5).bool(), "query": Q[0], "key": Q[0], "value": Q[0]},
        ValueError,
        r"attn_mask has shape \(2, 1, 1, 5\), which does not broadcast to \(4, 5, 5\)",
    ),
    ({"attn_mask": [True]}, TypeError, "attn_mask is a list; expected a torch.Tensor"),
    ({"attn_mask": torch.ones(4)}, ValueError, r"attn_mask has shape \(4,\), which does not broad"),
    ({"attn_mask": torch.ones(1, 1, 1, 1, 5)}, ValueError, r"does not broadcast to \(1, 4, 5, 5\)"),
    (
        {"attn_mask": torch.ones(5).double()},
        TypeError,
        "attn_mask has dtype torch.float64; .* torch.bool",
    ),
    ({"attn_mask": torch.ones(5).int()}, TypeError, "torch.int32; .* torch.bool"),
    ({"attn_mask": torch.ones(5).bool(), "is_causal": True}, ValueError, "pass one of them"),
]


@pytest.mark.parametrize(("changes", "error", "words"), REFUSED, ids=[w for _, _, w in REFUSED])
def test_bad_input_is_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        scaled_dot_product_attention(**{"query": Q, "key": Q, "value": Q} | changes)


# ---- torch's own functions ----


@pytest.fixture
def overridden() -> Iterator[None]:
    """Overrides the operators for CPU tensors; the public registration is for CUDA."""
    override = torch_sdpa.override("CPU")
    yield
    override.remove()


@pytest.mark.parametrize("is_causal", [False, True])
def test_torch_s_operator_calls_flashsmith(overridden: None, is_causal: bool) -> None:
    q, k, v = inputs(seq_len_k=7)
    for query in (q, q.transpose(1, 2).contiguous().transpose(1, 2)):
        result = ATEN._scaled_dot_product_flash_attention(query, k, v, 0.0, is_causal, scale=0.3)
        out, lse, cu_q, cu_k, max_q, max_k, _, _, debug_mask = result
        expected, expected_lse = reference_varlen(
            *(t.transpose(1, 2) for t in (q, k, v)), causal=is_causal, softmax_scale=0.3
        )
        assert_equal(out, expected.transpose(1, 2))
        assert_equal(lse, expected_lse)
        assert out.stride() == query.stride()  # torch.compile relies on it
        assert (cu_q, cu_k, max_q, max_k) == (None, None, 7, 7) and debug_mask.numel() == 0


def test_its_causal_attention_begins_at_the_top_left(overridden: None) -> None:
    q, k, v = inputs(seq_len_k=9)
    out = ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
    assert_equal(
        out, F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
    )


def test_packed_and_dense_attention_of_torch_s_flash_operator(overridden: None) -> None:
    q, k, v = random(2, 7, 4, 16), random(2, 9, 2, 16), random(2, 9, 2, 16)
    options = {"scale": 0.3, "window_size_left": 2, "alibi_slopes": torch.rand(4)}
    semantics = {
        "softmax_scale": 0.3,
        "window_size": (2, -1),
        "alibi_slopes": options["alibi_slopes"],
    }
    arguments = (None, None, 7, 9, 0.0, True, False)
    out, lse, *_ = ATEN._flash_attention_forward(q, k, v, *arguments, **options)
    expected = reference_varlen(q, k, v, causal=True, **semantics)
    assert_equal(out, expected[0])
    assert_equal(lse, expected[1])
    into = torch.zeros_like(q)
    again = ATEN._flash_attention_forward_no_dropout_inplace(into, q, k, v, *arguments, **options)
    assert torch.equal(into, out) and torch.equal(again, lse)
    packed = (random(10, 4, 16), random(10, 2, 16), random(10, 2, 16))
    seqused = torch.tensor([2, 0, 7], dtype=torch.int32)
    out, lse, *_ = ATEN._flash_attention_forward(
        *packed, CU, CU, 7, 7, 0.0, False, False, seqused_k=seqused, num_splits=1
    )
    expected = reference_varlen(*packed, cu_seqlens_q=CU, cu_seqlens_k=CU, seqused_k=seqused)
    assert_equal(out, expected[0])
    assert_equal(lse, expected[1])


@pytest.mark.parametrize("window_size", [(-1, -1), (-1, 0), (2, 1)], ids=str)
def test_varlen_attn_of_torch_calls_flashsmith(
    overridden: None, window_size: tuple[int, int]
) -> None:
    packed = (random(10, 4, 16), random(10, 2, 16), random(10, 2, 16))
    keywords: dict[str, Any] = {"window_size": window_size, "scale": 0.3, "enable_gqa": True}
    with torch.no_grad():
        out = varlen_attn(*packed, CU, CU, 7, 7, **keywords)
    expected, _ = reference_varlen(
        *packed, cu_seqlens_q=CU, cu_seqlens_k=CU, window_size=window_size, softmax_scale=0.3
    )
    assert_equal(out, expected)


@pytest.mark.parametrize(
    ("positional", "options", "words"),
    [
        ((0.0, False, True), {}, "return_debug_mask is True; only False"),
        ((0.0, False, False), {"num_splits": 2}, "num_splits is 2; only 0 and 1"),
    ],
)
def test_what_torch_s_operators_refuse(
    overridden: None, positional: tuple[Any, ...], options: dict[str, Any], words: str
) -> None:
    q = random(1, 5, 2, 16)
    with pytest.raises(NotImplementedError, match=words):
        ATEN._flash_attention_forward(q, q, q, None, None, 5, 5, *positional, **options)


@pytest.mark.parametrize("name", ["alibi_slopes", "seqused_k"])
def test_what_torch_does_not_tell_its_backward_is_refused_where_a_gradient_is_needed(
    overridden: None, name: str
) -> None:
    """torch's backward operator does not get the argument, so its gradients would be wrong."""
    q = random(1, 5, 2, 16)
    of_name = {"alibi_slopes": torch.rand(2), "seqused_k": torch.tensor([3], dtype=torch.int32)}
    arguments = (None, None, 5, 5, 0.0, False, False)
    assert ATEN._flash_attention_forward(q, q, q, *arguments, **{name: of_name[name]})
    q.requires_grad_()
    with pytest.raises(NotImplementedError, match=f"{name} is given and a gradient is needed"):
        ATEN._flash_attention_forward(q, q, q, *arguments, **{name: of_name[name]})


def test_after_removal_torch_s_own_are_back() -> None:
    override = torch_sdpa.override("CPU")
    override.remove()
    override.remove()
    q = random(1, 2, 5, 16)
    with pytest.raises(NotImplementedError, match="'CPU' backend"):
        ATEN._scaled_dot_product_flash_attention(q, q, q)


def test_torch_knows_the_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = torch.nn.attention
    torch_sdpa.register()
    assert torch_sdpa.NAME in attention.list_flash_attention_impls()
    attention.activate_flash_attention_impl(torch_sdpa.NAME)
    assert attention.current_flash_attention_impl() == torch_sdpa.NAME
    attention.restore_flash_attention_impl()
    assert attention.current_flash_attention_impl() is None
    monkeypatch.delattr(attention, "register_flash_attention_impl")
    with pytest.raises(FlashsmithError, match=r"torch .* has no register_flash_attention_impl"):
        torch_sdpa.register()
