"""Causal kernels at every distance between the lengths of q and k.

The first block of keys with a mask, and the last block, depend on (len_k - len_q + first row + a
little) modulo B_c. The distances here cover more than a whole B_c.
"""

from __future__ import annotations

import pytest
import torch

from flashsmith.configs import CAUSAL, KernelId, parse_kernel_name_into_config
from flashsmith.runtime import emulation
from support import sm80_kernels
from support.problems import Emulated, assert_correct, random_qkv, run
from support.sm90_kernels import VARIED

KERNELS = {
    "plain": VARIED[8],  # B_c 48, cluster_2
    "lazy": VARIED[3],  # B_c 48, queue
    "stale": VARIED[9],  # B_c 64, cluster_2, ping_pong
    "stale, alone": parse_kernel_name_into_config(
        "(FP16, 96, 64, 48, 1): wgmma+stages_2+q_regs_6+overlap+lazy_4+stale"
    ),
    "narrow": VARIED[7],  # B_c 16, not overlapped
    "sm80": sm80_kernels.VARIED[5],  # B_c 32, 16 rows a warp
    "sm80, 32 rows a warp": sm80_kernels.VARIED[6],  # B_c 32
    "sm80, 8 warps": sm80_kernels.VARIED[4],  # B_c 64
}


@pytest.mark.parametrize("first_row", [0, 16, 64])
@pytest.mark.parametrize("name", KERNELS)
def test_first_row_of_a_warp_sees_its_keys_alone(
    name: str, first_row: int, emulated: Emulated
) -> None:
    """The hidden keys are so large that a single one of them would dominate the result."""
    instance = KernelId(KERNELS[name], CAUSAL)
    kernel, B_c = emulated(instance), instance.config.B_c
    with emulation(kernel, count=False):
        len_q = first_row + 3
        for distance in range(-2, B_c + 1):
            q, k, v = random_qkv(instance.config, len_q, seq_len_k=len_q + distance)
            q[..., 0] = 8.0
            hidden = max(0, first_row + distance + 1)
            k[:, hidden:, :, 0], v[:, hidden:] = 8.0, 50.0
            assert_correct(run(kernel, (q, k, v)), (q, k, v), instance)


@pytest.mark.parametrize("len_q", [1, 2, 64, 65, 129])
@pytest.mark.parametrize("name", KERNELS)
def test_neighbouring_lengths(name: str, len_q: int, emulated: Emulated) -> None:
    instance = KernelId(KERNELS[name], CAUSAL)
    kernel, B_c = emulated(instance), instance.config.B_c
    near = {n * B_c + by for n in (1, 2) for by in (-1, 0, 1)}
    with emulation(kernel, count=False):
        for len_k in sorted({1, len_q, len_q + 1, *near, *(len_q + n for n in near)}):
            qkv = random_qkv(instance.config, len_q, seq_len_k=len_k)
            o = run(kernel, qkv)
            assert_correct(o, qkv, instance)
            blind = max(0, len_q - len_k)
            assert torch.equal(o[:, :blind], torch.zeros_like(o[:, :blind]))
