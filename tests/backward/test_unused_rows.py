"""Gradients of rows outside all sequences are 0 in tensors that the library allocates, and are not
written in tensors of the caller."""

from __future__ import annotations

import random

import pytest
import torch

import flashsmith
from flashsmith.configs import BackwardKernelConfig, DType, KernelId, Variant
from flashsmith.configs.sm80.sums_backward_space import small_heuristic
from flashsmith.jit import Target
from flashsmith.ops.backward import run_backward
from flashsmith.ops.spec import spec_of
from flashsmith.reference import Packing, ReferenceGradients
from flashsmith.runtime import GradientTensors, load_kernels
from support.backward_kernels import PLAIN
from support.gradient_calls import Call, call_of, used_rows
from support.gradients import assert_near_truth, launch, tensors_of

CONFIGS = PLAIN | {"sm80 sums, shared keys": small_heuristic(DType.BF16, 96)}
BY_FAMILY = pytest.mark.parametrize("cfg", CONFIGS.values(), ids=CONFIGS.keys())
SEEDS = range(6)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    variants = [Variant(causal=causal, varlen=True) for causal in (False, True)]
    load_kernels([KernelId(cfg, v) for cfg in CONFIGS.values() for v in variants], EMULATOR)


EMULATOR = Target.emulator()


def drawn(cfg: BackwardKernelConfig, seed: int) -> Call:
    """Returns a call, packed or with `seqused`, whose sequences begin behind row 0, use a part of
    their rows, and end before the last row; some are empty."""
    draw = random.Random(seed)
    n, heads_kv = draw.randint(1, 4), draw.choice((1, 2))
    is_packed_q, is_packed_k = seed % 3 != 0, seed % 3 != 1
    packing: dict[str, torch.Tensor] = {}
    shapes = []
    for side, is_packed, heads in (("q", is_packed_q, 2), ("k", is_packed_k, heads_kv)):
        lengths = [draw.choice((0, 1, 17, 63, 70, 129)) for _ in range(n)]
        used = [draw.choice((0, length, length // 2)) for length in lengths]
        packing[f"seqused_{side}"] = torch.tensor(used, dtype=torch.int32)
        if is_packed:
            offsets = torch.tensor([draw.choice((0, 3)), *lengths]).cumsum(0)
            packing[f"cu_seqlens_{side}"] = offsets.int()
            shapes.append((int(offsets[-1]) + draw.choice((0, 70)), heads, cfg.d_head))
        else:
            shapes.append((n, max(lengths) + 1, heads, cfg.d_head))
    torch.manual_seed(seed)
    causal, dtype = draw.random() < 0.5, cfg.dtype.to_torch_dtype()
    return call_of(dtype, *shapes, packing=Packing(**packing), causal=causal)


def unused_of(call: Call, found: ReferenceGradients) -> list[torch.Tensor]:
    """Returns the rows of dq, dk and dv that lie outside all sequences."""
    used_q, used_k = used_rows(call.q, call.k, call.packing)
    return [found.q[~used_q], found.k[~used_k], found.v[~used_k]]


@pytest.mark.parametrize("seed", SEEDS)
@BY_FAMILY
def test_they_are_zero_in_new_tensors_and_no_other_row_is(
    cfg: BackwardKernelConfig, seed: int
) -> None:
    call = drawn(cfg, seed)
    found = launch(call.kernel(cfg), call, gaps=seed % 2 == 1, are_new=True)
    for rows in unused_of(call, found):
        assert (rows == 0).all()
    used_q, used_k = used_rows(call.q, call.k, call.packing)
    found.q[~used_q] = found.k[~used_k] = found.v[~used_k] = torch.nan  # as in the reference
    assert_near_truth(found, call)


@pytest.mark.parametrize("seed", SEEDS)
def test_they_stay_in_tensors_of_the_caller_s(seed: int) -> None:
    """A repeated call does not confuse the two cases, in either order."""
    cfg = CONFIGS["sm80"]
    call = drawn(cfg, seed)
    spec = spec_of(call.q, call.k, call.keywords)
    given = tensors_of(call)
    new = given._replace(dq=None, dk=None, dv=None)
    run_backward(new, spec, config=cfg)
    run_backward(given, spec, config=cfg)
    for rows in unused_of(call, ReferenceGradients(given.dq, given.dk, given.dv)):
        assert rows.isnan().all()
    again, _ = run_backward(new, spec, config=cfg)
    for rows in unused_of(call, again):
        assert (rows == 0).all()


def test_without_any_sequence_all_rows_are_zero() -> None:
    q = torch.randn(5, 2, 64, dtype=torch.bfloat16)
    nothing, lse = torch.zeros(1, dtype=torch.int32), torch.zeros(2, 5)
    keywords = {"cu_seqlens_q": nothing, "cu_seqlens_k": nothing}
    tensors = GradientTensors(q, q, q, q, lse, q)
    found, _ = run_backward(tensors, spec_of(q, q, keywords))
    assert all((t == 0).all() for t in found[:3])


def test_they_are_zero_for_autograd_whatever_new_memory_holds() -> None:
    q, k, v = (torch.randn(40, 2, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    lengths = torch.tensor([2, 12, 30], dtype=torch.int32)
    torch.use_deterministic_algorithms(True)  # it fills new memory with NaN
    try:
        o = flashsmith.attention(q, k, v, cu_seqlens_q=lengths, cu_seqlens_k=lengths)
        found = torch.autograd.grad(o[2:30].sum(), (q, k, v))
    finally:
        torch.use_deterministic_algorithms(False)
    for t in found:
        assert (t[:2] == 0).all() and (t[30:] == 0).all() and t.isfinite().all()
