"""The splits of a work tile that wait for each other, and combine a share of it each.

Thread blocks run side by side on as many workers as there are. On one worker the first block waits
until no other can run, and gives up, so that the last one to arrive combines everything.
"""

from __future__ import annotations

from random import Random

import pytest
import torch

from flashsmith.configs import DecodeKernelConfig
from flashsmith.reference import Semantics
from support.decoding import (
    WGMMA,
    Requests,
    assert_near_truth,
    assert_same_bits,
    in_pages,
    plan_of,
    requests,
    run,
)

ALL_AT_ONCE = 8  # workers; the emulated GPU has four SMs, with one of these thread blocks each


def launches(
    cfg: DecodeKernelConfig, asked: Requests, splits: int, num_sms: int = 0, ragged: bool = False
) -> int:
    return len(plan_of(cfg, asked, splits, full=not ragged, num_sms=num_sms).launches)


@pytest.mark.parametrize("cfg", [WGMMA[0], WGMMA[-1]], ids=str)
def test_the_cost_model_knows_how_many_splits_wait(cfg: DecodeKernelConfig) -> None:
    asked = requests(cfg, (33 * cfg.B_c,), n_q=1, heads=(4, 1))
    most = cfg.max_waiting_splits
    assert [launches(cfg, asked, splits, num_sms=40) for splits in (most, most + 1)] == [1, 2]


@pytest.mark.parametrize("cfg", WGMMA, ids=str)
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


@pytest.mark.parametrize("cfg", WGMMA[:2], ids=str)
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


@pytest.mark.parametrize("cfg", WGMMA[:2], ids=str)
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


@pytest.mark.parametrize("splits", [9, 16, 17, 31, 32])
@pytest.mark.parametrize("cfg", WGMMA, ids=str)
def test_threads_share_many_splits(cfg: DecodeKernelConfig, splits: int) -> None:
    """The combine kernel, which serves GPUs of fewer SMs, has the same bits."""
    asked = requests(cfg, (splits * cfg.B_c - 7,), n_q=cfg.B_r // 4, heads=(4, 1))
    assert launches(cfg, asked, splits, num_sms=splits) == 1
    assert launches(cfg, asked, splits, num_sms=splits - 1) == 2
    together = run(cfg, asked, splits=splits, num_sms=splits, workers=splits)
    assert_near_truth(together, asked)
    for num_sms, workers in ((splits, 1), (splits, 3), (splits - 1, 0)):
        how = {"splits": splits, "num_sms": num_sms, "workers": workers}
        assert_same_bits(together, run(cfg, asked, **how))


@pytest.mark.parametrize("cfg", WGMMA, ids=str)
def test_splits_of_stream_k_wait(cfg: DecodeKernelConfig) -> None:
    """Blocks have splits of two work tiles that others share, one of them, a whole one, or none;
    a work tile has up to 17 splits."""
    steps = cfg.B_c
    semantics = Semantics(causal=True, sinks=torch.linspace(-3, 6, 4))
    for lengths, num_sms in (
        ((61 * steps, 2 * steps + 5), 6),
        ((150 * steps - 3, steps, 0, 9 * steps), 17),
        ((40 * steps, 31 * steps - 1, 3, 7 * steps), 13),
    ):
        asked = requests(cfg, lengths, n_q=3, heads=(4, 1))
        assert launches(cfg, asked, 0, num_sms, ragged=True) == 1
        together = run(cfg, asked, semantics, num_sms=num_sms, workers=num_sms)
        assert_near_truth(together, asked, semantics)
        for workers in (1, 2, 5):
            how = {"num_sms": num_sms, "workers": workers, "seed": workers}
            assert_same_bits(together, run(cfg, asked, semantics, **how))


@pytest.mark.parametrize("seed", range(20))
def test_random_calls_on_gpus_of_many_sizes(seed: int) -> None:
    """Splits are equal and wait, or a kernel combines them, or they are those of stream-K. Thread
    blocks run side by side, or some wait in vain for others."""
    rng = Random(seed)
    torch.manual_seed(seed)
    cfg = rng.choice(WGMMA)
    kv = rng.choice((1, 1, 2, 3))
    n_q = rng.randint(1, max(cfg.B_r // 4, 2) + 8)
    lengths = [
        rng.choice((0, 1, rng.randint(1, 9 * cfg.B_c), rng.randint(1, 60 * cfg.B_c)))
        for _ in range(rng.choice((1, 1, 2, 3, 4)))
    ]
    asked = requests(cfg, lengths, n_q=n_q, heads=(4 * kv, kv))
    placed = in_pages(asked, rng.choice((16, 64)), seed) if rng.random() < 0.4 else None
    sinks = torch.linspace(-3, 6, 4 * kv) if rng.random() < 0.5 else None
    semantics = Semantics(causal=rng.random() < 0.5, sinks=sinks)
    how = {"splits": rng.choice((0, 0, 0, rng.randint(1, 40))), "num_sms": rng.randint(2, 40)}
    found = run(cfg, asked, semantics, placed, workers=rng.choice((1, 3, 40)), seed=seed, **how)
    assert_near_truth(found, asked, semantics)
    assert_same_bits(found, run(cfg, asked, semantics, placed, workers=rng.choice((1, 40)), **how))
