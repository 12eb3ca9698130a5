"""The splits of a work tile that wait for each other, and combine a share of it each.

Thread blocks run side by side on as many workers as there are. On one worker the first block waits
until no other can run, and gives up, so that the last one to arrive combines everything.
"""

from __future__ import annotations

import pytest
import torch

from flashsmith.configs import DecodeKernelConfig, KernelId
from flashsmith.jit import Target
from flashsmith.reference import Semantics
from flashsmith.runtime import DecodeTensors, Splitting, find_decode
from support.decoding import WGMMA, Requests, assert_near_truth, assert_same_bits, requests, run

ALL_AT_ONCE = 8  # workers; the emulated GPU has four SMs, with one of these thread blocks each
WAITING = [cfg for cfg in WGMMA if cfg.max_waiting_splits > 0]


def launches(cfg: DecodeKernelConfig, asked: Requests, splits: int) -> int:
    kernel = find_decode(KernelId(cfg), Target.emulator())
    tensors = DecodeTensors(asked.q, asked.k, asked.v, torch.empty_like(asked.q))
    return len(kernel.plan(tensors, how=Splitting(splits)).launches)


@pytest.mark.parametrize("cfg", WGMMA, ids=str)
def test_the_cost_model_knows_which_kernels_have_splits_that_wait(cfg: DecodeKernelConfig) -> None:
    asked = requests(cfg, (900,), n_q=1, heads=(4, 1))
    assert launches(cfg, asked, splits=3) == (1 if cfg in WAITING else 2)


@pytest.mark.parametrize("cfg", WAITING, ids=str)
def test_whoever_combines_the_bits_are_the_same(cfg: DecodeKernelConfig) -> None:
    """The rows fill the tile or not, and leave a share without rows, or a warpgroup; one of the
    splits has no key where there are few."""
    semantics = Semantics(causal=True, sinks=torch.linspace(-3, 6, 4))
    for n_q, n_k in ((1, 900), (3, 900), (cfg.B_r // 4 - 1, 700), (cfg.B_r // 4, cfg.B_c * 3 - 7)):
        asked = requests(cfg, (n_k,), n_q=n_q, heads=(4, 1))
        for splits in (3, 4):
            assert launches(cfg, asked, splits) == 1
            together = run(cfg, asked, semantics, splits=splits, workers=ALL_AT_ONCE)
            assert_near_truth(together, asked, semantics)
            for workers in (1, 2, 3):
                how = {"splits": splits, "workers": workers, "seed": workers}
                assert_same_bits(together, run(cfg, asked, semantics, **how))


@pytest.mark.parametrize("cfg", WAITING[:2], ids=str)
def test_a_request_that_is_shorter_than_its_slot_has_fewer_splits(cfg: DecodeKernelConfig) -> None:
    """Thread blocks without a split are not waited for."""
    for steps in (0, 1, 2, 3):
        n_k = steps * cfg.B_c
        asked = requests(cfg, (n_k,), n_q=cfg.B_r // 4, heads=(4, 1), behind=900 - n_k)
        for splits in (0, 4):
            assert launches(cfg, asked, splits) == 1
            together = run(cfg, asked, splits=splits, workers=ALL_AT_ONCE)
            assert_near_truth(together, asked)
            assert_same_bits(together, run(cfg, asked, splits=splits, workers=1))


@pytest.mark.parametrize("cfg", WAITING[:2], ids=str)
def test_the_combine_kernel_has_the_same_bits(cfg: DecodeKernelConfig) -> None:
    """It combines where the GPU has no place for each split."""
    asked = requests(cfg, (900, 500, 77, 1200), n_q=cfg.B_r // 4, heads=(4, 1))
    for splits in (3, 4):
        assert launches(cfg, asked, splits) == 2
        together = run(cfg, asked, splits=splits)
        for i in range(len(asked.lengths)):
            one = asked.part([i])
            assert launches(cfg, one, splits) == 1
            alone = run(cfg, one, splits=splits, workers=ALL_AT_ONCE)
            assert_same_bits(alone, (together[0][i : i + 1], together[1][i : i + 1]))
