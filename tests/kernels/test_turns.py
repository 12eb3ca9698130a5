"""Ping-pong order of the warpgroups: no schedule makes a thread block wait forever."""

from __future__ import annotations

import pytest
import torch

from flashsmith.configs import KernelId, parse_kernel_name_into_config
from flashsmith.runtime import emulation
from support.kernels import both_variants
from support.problems import Emulated, assert_correct, random_qkv, run

SEEDS = 6
# A tile runs into the next with all of Q in registers, with a part of it, or not at all; the
# kernels cover every softmax, two warpgroups and more, and clusters.
CONFIGS = [
    parse_kernel_name_into_config(name)
    for name in (
        "(BF16, 64, 128, 32, 2): wgmma+stages_2+q_regs_2+overlap+ping_pong+persistent+queue+tiles"
        "+lazy_8+stale+tma_store+fp8_scores+ping_pong_until_exp",
        "(BF16, 64, 256, 64, 4): wgmma+stages_3+q_regs_1+overlap+ping_pong+persistent+queue+tiles"
        "+lazy_8+fp8_scores+ping_pong_until_exp",
        "(BF16, 64, 128, 32, 2): wgmma+stages_2+q_regs_2+overlap+ping_pong+persistent+queue+tiles"
        "+fp8_scores+fp8_values+two_level+ping_pong_until_exp",
        "(BF16, 64, 128, 64, 2): wgmma+stages_2+q_regs_2+overlap+ping_pong+persistent+queue"
        "+fp8_scores+fp8_values+ping_pong_until_exp",
        "(BF16, 64, 128, 64, 2): wgmma+stages_2+q_regs_2+overlap+ping_pong+persistent+tiles"
        "+cluster_2+lazy_8+stale+fp8_scores+ping_pong_until_exp",
    )
]


@pytest.mark.parametrize("instance", both_variants(CONFIGS), ids=lambda i: i.slug)
def test_ping_pong_until_exp_in_every_schedule(instance: KernelId, emulated: Emulated) -> None:
    """Each thread block has several tiles, with many blocks of keys and with one."""
    kernel, cfg = emulated(instance), instance.config
    for seq_len_k in (8 * cfg.B_c - 20, cfg.B_c - 4):
        qkv = random_qkv(cfg, 3 * cfg.B_r - 20, heads=4, seq_len_k=seq_len_k)
        good = run(kernel, qkv)
        assert_correct(good, qkv, instance)
        for seed in range(1, SEEDS):
            with emulation(kernel, count=False, seed=seed, workers=1):
                assert torch.equal(run(kernel, qkv), good)
