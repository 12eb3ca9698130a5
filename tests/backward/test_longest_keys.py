"""The backward of packed keys is launched over the blocks of the longest sequence, whose length the
caller bounds, and not over those of all sequences together."""

from __future__ import annotations

import pytest
import torch

import flashsmith
from flashsmith.configs import BackwardKernelConfig, KernelId, Variant
from flashsmith.jit import Target
from flashsmith.ops.spec import AttentionSpec, resolve
from flashsmith.runtime import load_kernels
from support.backward_kernels import PLAIN
from support.gradient_calls import Call, packed_call
from support.gradients import assert_near_truth, launch, plan_of

PACKED = Variant(causal=True, varlen=True)
EACH = pytest.mark.parametrize("cfg", PLAIN.values(), ids=PLAIN.keys())
LENGTHS_Q = [30, 50, 20]


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    load_kernels([KernelId(cfg, PACKED) for cfg in PLAIN.values()], Target.emulator())


def causal_call(cfg: BackwardKernelConfig, lengths_k: list[int]) -> Call:
    return packed_call(cfg, LENGTHS_Q, lengths_k, causal=True)


def n_blocks(cfg: BackwardKernelConfig, call: Call, longest: int) -> int:
    """Returns the thread blocks of all launches."""
    plan = plan_of(call.kernel(cfg), call, call.extras._replace(max_seqlen_k=longest))
    return sum(x * y * z for x, y, z in (each.grid for each in plan.launches))


@EACH
def test_a_bound_saves_thread_blocks(cfg: BackwardKernelConfig) -> None:
    call = causal_call(cfg, [100, 900, 500])
    all_rows, bounded = n_blocks(cfg, call, -1), n_blocks(cfg, call, 900)
    assert n_blocks(cfg, call, 1500) == n_blocks(cfg, call, 4000) == all_rows
    is_persistent = getattr(cfg, "persistent", False)  # as many thread blocks as SMs
    assert bounded == all_rows if is_persistent else bounded < all_rows
    assert_near_truth(launch(call.kernel(cfg), call), call)


@EACH
def test_a_call_with_another_bound_is_planned_anew(cfg: BackwardKernelConfig) -> None:
    """The tensors look alike, and each call computes the gradients of all its keys."""
    short, long = causal_call(cfg, [200, 250, 250]), causal_call(cfg, [20, 660, 20])
    for call in (short, short, long, short, long, long):
        bounds = {"max_seqlen_q": 50, "max_seqlen_k": call.extras.max_seqlen_k}
        tensors = (call.do, call.q, call.k, call.v, call.o, call.lse)
        found = flashsmith.backward(cfg, *tensors, **call.keywords, **bounds)
        assert_near_truth(found, call)


def test_attention_hands_on_the_bound() -> None:
    q = torch.empty(100, 2, 64)
    lengths = torch.tensor([0, 30, 100], dtype=torch.int32)
    spec = AttentionSpec(
        causal=True, cu_seqlens_q=lengths, cu_seqlens_k=lengths, max_seqlen_q=80, max_seqlen_k=70
    )
    assert resolve(spec, q, q).extras[-5:-3] == (80, 70)
    assert resolve(spec._replace(max_seqlen_k=None), q, q).extras.max_seqlen_k == 100
