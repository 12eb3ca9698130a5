"""A call is timed on request."""

from __future__ import annotations

from typing import Any

import torch

import flashsmith
from flashsmith.configs import KernelId
from flashsmith.jit import Target
from flashsmith.runtime import (
    DecodeTensors,
    GradientTensors,
    find_backward,
    find_decode,
    find_kernel,
)
from flashsmith.runtime.workspace import counters_for, workspace_for
from support.backward_kernels import PLAIN as GRADIENTS
from support.decoding import PLAIN, requests
from support.problems import random_qkv
from support.sm80_kernels import BASE


def test_forward_measures_if_it_is_asked_for() -> None:
    q, k, v = random_qkv(BASE, 64)
    kernel = find_kernel(KernelId(BASE), Target.emulator())
    o = torch.empty_like(q)
    assert kernel(q, k, v, o, 0.1) == 0
    assert kernel(q, k, v, o, 0.1, True) > 0


def test_decode_measures_if_it_is_asked_for() -> None:
    given = requests(PLAIN, (40, 17))
    kernel = find_decode(KernelId(PLAIN), Target.emulator())
    tensors = DecodeTensors(given.q, given.k, given.v, torch.empty_like(given.q), None)
    plan = kernel.plan(tensors)

    def milliseconds(*timed: bool) -> Any:
        kept = {
            "counters": counters_for(plan, given.q.device),
            "workspace": workspace_for(plan, given.q.device),
        }
        return kernel(tensors, 0.1, *timed, **kept)

    assert milliseconds() == 0
    assert milliseconds(True) > 0


def test_backward_measures_if_it_is_asked_for() -> None:
    config = GRADIENTS["sm80"]
    q, k, v, o, do, dq, dk, dv = (torch.zeros(1, 40, 2, config.d_head).bfloat16() for _ in range(8))
    kernel = find_backward(KernelId(config), Target.emulator())
    tensors = GradientTensors(q, k, v, o, torch.zeros(1, 2, 40), do, dq, dk, dv)
    assert kernel(tensors, 0.1) == 0
    assert kernel(tensors, 0.1, True) > 0


def test_times_are_returned_with_benchmark_alone() -> None:
    q, k, v = random_qkv(BASE, 64)
    assert isinstance(flashsmith.forward(BASE, q, k, v), torch.Tensor)
    _, milliseconds = flashsmith.forward(BASE, q, k, v, benchmark=True)
    assert milliseconds > 0
