"""torch's flex_attention by flashsmith: its layout, and the arguments that it passes on."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest
from torch.nn.attention.flex_attention import flex_attention as flex_attention_of_torch

from flashsmith.integrations import flex
from flashsmith.reference import reference_varlen


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Returns the list of the kernels' arguments other than tensors; the reference computes the
    result."""
    found = []

    def attention(q: Any, k: Any, v: Any, *, return_lse: bool, **keywords: Any) -> Any:
        found.append(keywords)
        o, lse = reference_varlen(q, k, v, softmax_scale=keywords["softmax_scale"])
        return (o.to(q.dtype), lse) if return_lse else o.to(q.dtype)

    monkeypatch.setattr(flex, "attend_any_head", attention)
    return found


def test_the_arguments_are_those_of_torch() -> None:
    ours, theirs = (
        [(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()]
        for f in (flex.flex_attention, flex_attention_of_torch)
    )
    assert ours == theirs


def test_it_computes_what_torch_does(calls: list[dict[str, Any]]) -> None:
    q, k, v = (torch.randn(2, heads, n, 16).half() for heads, n in ((4, 7), (2, 9), (2, 9)))
    expected = flex_attention_of_torch(q.float(), k.float(), v.float(), scale=0.4, enable_gqa=True)
    o, lse = flex.flex_attention(q, k, v, scale=0.4, enable_gqa=True, return_lse=True)
    torch.testing.assert_close(o.float(), expected, rtol=2e-3, atol=2e-3)
    assert lse.shape == (2, 4, 7)
    alone = flex.flex_attention(q, k, v, scale=0.4, enable_gqa=True)
    assert isinstance(alone, torch.Tensor) and torch.equal(alone, o)


@pytest.mark.parametrize("lse", [False, True])
def test_auxiliary_outputs_are_those_that_were_asked_for(
    calls: list[dict[str, Any]], lse: bool
) -> None:
    q, k, v = (torch.randn(2, 4, n, 16).half() for n in (7, 9, 9))
    expected, aux_of_torch = flex_attention_of_torch(
        q.float(), k.float(), v.float(), scale=0.4, return_aux=AuxRequest(lse=lse)
    )
    o, aux = flex.flex_attention(q, k, v, scale=0.4, return_aux=AuxRequest(lse=lse))
    assert isinstance(aux, AuxOutput) and aux.max_scores is aux_of_torch.max_scores is None
    torch.testing.assert_close(o.float(), expected, rtol=2e-3, atol=2e-3)
    assert (aux.lse is None) == (aux_of_torch.lse is None) == (not lse)
    if lse:
        torch.testing.assert_close(aux.lse.float(), aux_of_torch.lse, rtol=2e-3, atol=2e-3)


def test_mods_and_block_masks_are_passed_on(calls: list[dict[str, Any]]) -> None:
    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score

    q, block_mask = torch.randn(1, 2, 5, 16).half(), object()
    flex.flex_attention(q, q, q, score_mod, block_mask)
    assert calls == [{"softmax_scale": None, "score_mod": score_mod, "block_mask": block_mask}]


Q = torch.zeros(1, 4, 5, 16).half()
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"query": None}, TypeError, "query is a NoneType; expected a torch.Tensor"),
    ({"value": Q[0]}, ValueError, r"value has shape \(4, 5, 16\); expected 4 dimensions"),
    ({"key": Q[:, :2]}, ValueError, "query has 4 heads and key has 2; pass enable_gqa=True"),
    (
        {"return_aux": True},
        TypeError,
        "return_aux is a bool; expected an AuxRequest of torch.nn.att",
    ),
    ({"return_aux": (True, False)}, TypeError, "return_aux is a tuple; expected an AuxRequest"),
    (
        {"return_aux": AuxRequest(), "return_lse": True},
        ValueError,
        "return_lse is True and return_a",
    ),
    (
        {"return_aux": AuxRequest(max_scores=True)},
        NotImplementedError,
        "return_aux asks for max_scores, which kernels do not keep",
    ),
    ({"scale": math.inf}, ValueError, "scale is inf; expected 0, or a number from"),
    ({"return_lse": 1}, TypeError, "return_lse is 1; expected True or False"),
    ({"kernel_options": {"BLOCK_M": 64}}, ValueError, "kernel_options is {'BLOCK_M': 64}"),
]


@pytest.mark.parametrize(("changes", "error", "words"), REFUSED, ids=[w for _, _, w in REFUSED])
def test_bad_input_is_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        flex.flex_attention(**{"query": Q, "key": Q, "value": Q} | changes)
