"""A refusal depends on the call alone, neither on earlier calls nor on whether there are keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flashsmith
from support.problems import random_qkv
from support.sm80_kernels import BASE

LENGTH = 64


def test_o_is_looked_at_in_every_call_without_keys() -> None:
    """No kernel would check o, since none runs without keys."""
    q, k, v = random_qkv(BASE, LENGTH)
    nothing = q, k[:, :0], v[:, :0]
    for o, error, words in (
        (q.float(), TypeError, "o has dtype float32"),
        (q[..., :8].contiguous(), ValueError, r"o has shape \(1, 64, 1, 8\)"),
        (q[:, 1:], ValueError, r"o has shape \(1, 63, 1, 128\)"),
    ):
        assert not flashsmith.forward(BASE, *nothing).any()
        with pytest.raises(error, match=words):
            flashsmith.forward(BASE, *nothing, o)


@pytest.mark.parametrize("keys", [0, 8])
def test_gradients_of_wrong_tensors_are_refused(keys: int) -> None:
    q, k, v = random_qkv(BASE, LENGTH)
    arguments: dict[str, Any] = {"do": q, "q": q, "k": k[:, :keys], "v": v[:, :keys], "o": q}
    arguments["lse"] = torch.zeros(1, 1, LENGTH)
    flashsmith.backward(None, **arguments)
    for name, wrong, error, words in (
        ("q", q.float(), TypeError, "q has dtype"),
        ("lse", arguments["lse"].half(), TypeError, "lse has dtype"),
        ("lse", arguments["lse"][..., :3], ValueError, "lse has shape"),
        ("k", k.repeat(1, 1, 3, 1)[:, :keys], ValueError, "heads of q must be a multiple"),
        ("k", k[:, :keys, :, :64], ValueError, "batch and d_head must be equal"),
    ):
        with pytest.raises(error, match=words):
            flashsmith.backward(None, **arguments | {name: wrong})


def test_of_two_faults_the_same_is_named_whatever_was_called_before() -> None:
    q, k, v = random_qkv(BASE, LENGTH)
    wrong: Any = {"softmax_scale": "0.2"}
    messages = set()
    for _ in range(2):
        with pytest.raises(TypeError) as refused:
            flashsmith.forward(BASE, q.float(), k.float(), v.float(), **wrong)
        messages.add(str(refused.value))
        flashsmith.forward(BASE, q, k, v)
    assert len(messages) == 1
