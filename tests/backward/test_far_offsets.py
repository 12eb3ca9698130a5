"""The backward reads and writes elements that lie further apart than 32 bits can count.

The memory is reserved but never touched, apart from the pages that hold elements.
"""

from __future__ import annotations

import math

import pytest
import torch

from flashsmith.configs import FULL, BackwardKernelConfig, KernelId
from flashsmith.jit import Target
from flashsmith.reference import ReferenceGradients
from flashsmith.runtime import GradientTensors, find_backward
from support.backward_kernels import PLAIN
from support.far import interleaved
from support.gradient_calls import call_of
from support.gradients import differing, launch_loaded

FAR = (1 << 31) + 8  # elements
LAID_OUT = ("q", "k", "v", "o", "do", "dq", "dk", "dv")
SHAPES = {"batch": (0, (2, 70, 1)), "rows": (1, (1, 200, 1)), "heads": (2, (1, 70, 2))}


def far_from_each_other(tensors: GradientTensors, dim: int) -> GradientTensors:
    """Copies each tensor of ``LAID_OUT`` to memory where its stride along ``dim`` is ``FAR``."""
    q = tensors.q
    places = interleaved(len(LAID_OUT), q.shape, dim, FAR, q.dtype)
    copies = (t.copy_(getattr(tensors, n)) for n, t in zip(LAID_OUT, places, strict=True))
    return tensors._replace(**dict(zip(LAID_OUT, copies, strict=True)))


@pytest.mark.parametrize("where", SHAPES)
@pytest.mark.parametrize("config", PLAIN.values(), ids=PLAIN.keys())
def test_gradients_are_those_of_tensors_without_gaps(
    config: BackwardKernelConfig, where: str
) -> None:
    dim, rows = SHAPES[where]
    shape = *rows, config.d_head
    call = call_of(torch.bfloat16, shape, shape)
    kernel = KernelId(config, FULL)
    loaded = find_backward(kernel, Target.emulator())
    near = launch_loaded(loaded, call)

    results = [torch.full(shape, math.nan, dtype=torch.bfloat16) for _ in "qkv"]
    tensors = GradientTensors(
        call.q, call.k, call.v, call.o, call.lse, call.do, *results, None, None, None
    )
    tensors = far_from_each_other(tensors, dim)
    n_bytes = loaded.plan(tensors).workspace_bytes
    workspace = torch.full((n_bytes // 4,), math.nan).view(torch.uint8) if n_bytes else None
    loaded(tensors, call.scale, workspace=workspace)
    found = ReferenceGradients(*(t.contiguous() for t in (tensors.dq, tensors.dk, tensors.dv)))
    assert not differing(config, found, near)
    if not config.is_deterministic:
        torch.testing.assert_close(found.q, near.q, atol=1e-2, rtol=1e-2)
