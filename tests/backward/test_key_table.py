"""The sm90 backward of sequences of unlike lengths draws its tiles from a table, which has the
sequences with the most queries first."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from flashsmith.configs import DType, KernelId, Sm90BackwardKernelConfig, Variant
from flashsmith.configs.sm90.backward_space import heuristic
from flashsmith.jit import Target
from flashsmith.runtime import CallArgs, find_backward, load_kernels
from support.gradient_calls import Call, packed_call
from support.gradients import assert_near_truth, launch, plan_of, tensors_of

CAUSAL, FULL = Variant(causal=True, varlen=True), Variant(varlen=True)
D64, D192 = heuristic(DType.BF16, 64), heuristic(DType.BF16, 192)
CONFIGS = [
    replace(D64, persistent=True, split_groups=True),
    replace(D64, persistent=True, dQ_in_order=True, split_groups=True),
    replace(D64, persistent=False),
    replace(D192, persistent=True),
]
EACH = pytest.mark.parametrize(
    "cfg", CONFIGS, ids=["any order", "in order", "a tile a block", "shared keys"]
)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    load_kernels([KernelId(cfg, v) for cfg in CONFIGS for v in (CAUSAL, FULL)], Target.emulator())


def has_table(cfg: Sm90BackwardKernelConfig, call: Call) -> bool:
    """Returns whether the first launch is not that of the row statistics, whose grid has blocks for
    each sequence."""
    return plan_of(call.kernel(cfg), call).launches[0].grid[2] == 1


def assert_right(cfg: Sm90BackwardKernelConfig, call: Call) -> None:
    assert has_table(cfg, call)
    assert_near_truth(launch(call.kernel(cfg), call), call)


@EACH
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_every_tile_of_every_sequence_is_in_the_table(
    cfg: Sm90BackwardKernelConfig, causal: bool
) -> None:
    """Lengths of keys and queries have no common order, some are equal or 0, and a tile is whole,
    or one key short of it, or one beyond."""
    n = cfg.B_c
    lengths_q = [40, 0, 150, 64, 64, 3, 90, 1]
    lengths_k = [n, 30, 2 * n + 1, n - 1, 0, n + 1, 3, 4100 if causal else 20]
    assert_right(cfg, packed_call(cfg, lengths_q, lengths_k, causal=causal))


@EACH
def test_sequences_that_a_warp_lists_in_turns(cfg: Sm90BackwardKernelConfig) -> None:
    """There are more sequences than a warp has lanes, and than a block has warps."""
    drawn = random.Random(0)
    lengths = [drawn.choice((0, 1, 5, 17, 30)) for _ in range(70)] + [70]
    assert_right(cfg, packed_call(cfg, lengths, list(reversed(lengths)), (1, 1)))


@EACH
def test_heads_that_start_in_several_groups(cfg: Sm90BackwardKernelConfig) -> None:
    """Heads do not divide evenly into the groups that fill four SMs; parts count as heads."""
    lengths = [2 * cfg.B_c, 60, 9]
    assert_right(cfg, packed_call(cfg, lengths, lengths, (10, 5)))


@EACH
def test_sequences_of_like_lengths_have_no_table(cfg: Sm90BackwardKernelConfig) -> None:
    lengths = [cfg.B_c + 20, cfg.B_c + 22, cfg.B_c + 21]
    call = packed_call(cfg, lengths, lengths, (4, 2))
    assert not has_table(cfg, call)
    assert_near_truth(launch(call.kernel(cfg), call), call)


def run(cfg: Sm90BackwardKernelConfig, call: Call, extras: CallArgs) -> None:
    """Runs a call whose results mean nothing, to its end."""
    loaded = find_backward(call.kernel(cfg), Target.emulator())
    loaded(tensors_of(call), call.scale, extras=extras)


@EACH
def test_too_low_a_bound_of_the_lengths(cfg: Sm90BackwardKernelConfig) -> None:
    """No warp waits for tiles that are not launched, with a table or without one."""
    n = cfg.B_c
    for lengths in ([30, 3 * n, 40, 50, 60], [3 * n, 3 * n, 3 * n - 1]):
        call = packed_call(cfg, lengths, lengths, (4, 2))
        run(cfg, call, call.extras._replace(max_seqlen_q=n, max_seqlen_k=n))


@EACH
def test_keys_that_overlap(cfg: Sm90BackwardKernelConfig) -> None:
    """Offsets that go back make more tiles than rows allow. Those without room are left out, and
    no warp waits for them."""
    n = cfg.B_c
    call = packed_call(cfg, [20, 10, 20, 30, 50], [2 * n, 10, 20, 30, 5 * n], (2, 2))
    end = int(call.extras.cu_seqlens_k[-1])  # type: ignore[index]
    offsets = torch.tensor([0, end, 0, end, 0, end], dtype=torch.int32)
    run(cfg, call, call.extras._replace(cu_seqlens_k=offsets))
