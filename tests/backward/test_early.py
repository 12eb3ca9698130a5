"""The main kernel of the sm90 backward converts dQ of the heads that are done, and clears the sums
of later ones, while it works on others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flashsmith.configs import CAUSAL, FULL, DType, KernelId, Sm90BackwardKernelConfig, Variant
from flashsmith.configs.sm90.backward_space import heuristic
from flashsmith.jit import Target
from flashsmith.runtime import load_kernels
from support.backward_kernels import BAND
from support.gradient_calls import Call, call_of, packed_call
from support.gradients import assert_near_truth, launch, plan_of

PLAIN = [heuristic(DType.BF16, d_head) for d_head in (64, 96, 128, 192)]
CONFIGS = [
    replace(cfg, persistent=True, split_groups=split)
    for cfg in PLAIN
    for split in (False, True)
    if not (split and cfg.shares_keys)
]
VARIANTS = [
    *(FULL, CAUSAL, BAND, Variant(causal=True, varlen=True)),
    Variant(causal=True, padded=True),
]
SEEDS = 2
EACH = pytest.mark.parametrize(
    "cfg", CONFIGS, ids=lambda cfg: f"d{cfg.d_head}{'-split' if cfg.split_groups else ''}"
)
NOT_SPLIT = pytest.mark.parametrize(
    "cfg", [cfg for cfg in CONFIGS if not cfg.split_groups], ids=lambda cfg: f"d{cfg.d_head}"
)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    kernels = [KernelId(cfg, variant) for cfg in CONFIGS for variant in VARIANTS]
    load_kernels(kernels, Target.emulator())


def heads_left(cfg: Sm90BackwardKernelConfig, call: Call) -> int:
    """Returns the heads of which the launch after the main kernel converts dQ."""
    _, heads, batch = plan_of(call.kernel(cfg), call).launches[-1].grid
    return heads * batch


def assert_right(cfg: Sm90BackwardKernelConfig, call: Call, left: int, seeds: int = SEEDS) -> None:
    """The call leaves this many heads to the last launch, and its gradients are right."""
    assert heads_left(cfg, call) == left
    for seed in range(seeds):
        assert_near_truth(launch(call.kernel(cfg), call, seed=seed), call)


def bf16_call(
    cfg: Sm90BackwardKernelConfig, q: tuple[int, ...], k: tuple[int, ...], **more: object
) -> Call:
    d_head = cfg.d_head
    return call_of(torch.bfloat16, (*q, d_head), (*k, d_head), **more)  # type: ignore[arg-type]


@EACH
def test_all_heads_but_those_of_two_rounds(cfg: Sm90BackwardKernelConfig) -> None:
    """Two tiles a head are worked on by four SMs, so that a round has two heads."""
    n_k = 2 * cfg.B_c - 30
    assert_right(cfg, bf16_call(cfg, (2, 140, 5), (2, n_k, 5)), left=4)
    assert_right(cfg, bf16_call(cfg, (5, 140, 2), (5, n_k, 2), causal=True), left=4)


@EACH
def test_queries_without_keys_have_zeros(cfg: Sm90BackwardKernelConfig) -> None:
    """Queries of a causal mask see nothing, and of some heads' tiles no query sees any key."""
    n_k = 2 * cfg.B_c
    assert_right(cfg, bf16_call(cfg, (8, 2 * n_k, 1), (8, n_k, 1), causal=True), left=4)
    few = bf16_call(cfg, (8, 40, 1), (8, n_k, 1), causal=True, top_left=True)
    assert_right(cfg, few, left=4)


@EACH
def test_windows(cfg: Sm90BackwardKernelConfig) -> None:
    call = bf16_call(cfg, (2, 200, 5), (2, 2 * cfg.B_c, 5), window_size=(60, 3))
    assert_right(cfg, call, left=4)


@EACH
def test_rows_that_are_padded(cfg: Sm90BackwardKernelConfig) -> None:
    d_head = cfg.d_head - 8
    shapes = (4, 70, 3, d_head), (4, 2 * cfg.B_c, 3, d_head)
    assert_right(cfg, call_of(torch.bfloat16, *shapes, causal=True), left=4)


@EACH
def test_grouped_heads(cfg: Sm90BackwardKernelConfig) -> None:
    """A round has one tile of each of two heads of K, or of two parts, which have one query head
    or more."""
    group, n_kv = 3, 8
    call = bf16_call(cfg, (1, 70, group * n_kv), (1, 2 * cfg.B_c, n_kv), causal=True)
    left = heads_left(cfg, call)
    assert left % 4 == 0 and 4 <= left <= 4 * group
    assert_right(cfg, call, left)


@EACH
def test_sequences_of_unlike_lengths(cfg: Sm90BackwardKernelConfig) -> None:
    """Some have no queries, no keys, or more blocks of queries than others. A round has as many
    heads as would fit if all were as long as the mean."""
    lengths_q, lengths_k = [70, 0, 130, 33, 5, 64], [50, 20, 2 * cfg.B_c, 0, 1, cfg.B_c + 1]
    call = packed_call(cfg, lengths_q, lengths_k, (2, 2), causal=True)
    assert_right(cfg, call, left=8)


@NOT_SPLIT
def test_sums_are_cleared_ahead_of_heads(cfg: Sm90BackwardKernelConfig) -> None:
    """Queries see so many keys that warps have time to clear, and there are more heads than those
    of the rounds that are ahead. Some tiles have no queries."""
    assert_right(cfg, bf16_call(cfg, (1, 70, 9), (1, 970, 9)), left=2, seeds=1)
    call = bf16_call(cfg, (5, 140, 2), (5, 1930, 2), causal=True, top_left=True)
    assert_right(cfg, call, left=2, seeds=1)


@NOT_SPLIT
@pytest.mark.parametrize("longest", [4000, 4100], ids=["as they come", "from a table"])
def test_sums_of_sequences_of_unlike_lengths_are_cleared(
    cfg: Sm90BackwardKernelConfig, longest: int
) -> None:
    """Heads have no slice of sums, one or two. Of a sequence without keys no tile waits for
    them."""
    lengths_q = [1, 130, 9, 33, 20, 3, 65] * 3
    lengths_q[2] = 0
    lengths_k = [3, cfg.B_c + 30, 9, 0, 30, 1, cfg.B_c] * 3
    lengths_k[8] = longest
    call = packed_call(cfg, lengths_q, lengths_k, (2, 2), causal=True)
    assert_right(cfg, call, left=4, seeds=1)


@EACH
def test_few_heads_are_left_to_the_last_launch(cfg: Sm90BackwardKernelConfig) -> None:
    assert_right(cfg, bf16_call(cfg, (1, 70, 3), (1, 2 * cfg.B_c, 3)), left=3)
