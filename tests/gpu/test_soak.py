"""The soak on the card: every kernel of the shipped tables, the progressions and the rules."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from flashsmith.bench import environment_stamp
from flashsmith.configs import (
    VARIANTS,
    ForwardKernelConfig,
    KernelId,
    Variant,
    get_kernel_progression_configs,
    get_sm90_kernel_progression_configs,
)
from flashsmith.problem import Problem
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of
from flashsmith.soak import (
    RERUNS,
    CardLoad,
    SoakCase,
    SoakPlan,
    Tally,
    check,
    prepare,
    reproduce,
    rule_configs,
    soak,
    table_configs,
    that_run_on,
    write_csv,
)
from support.paths import ROOT

pytestmark = pytest.mark.gpu

SECONDS = 120  # for all kernels; building comes on top
RANDOM_CASES = 20  # of each dtype and d_head, after the cases at the seams of tiles
LOG = ROOT / "build" / "gpu" / "soak.csv"
# Problems on which kernels once gave other rows in each run: one block of keys a tile, many tiles
# for each thread block; batch 4, 18 heads over 3.
ONCE_WRONG = [(500, 500, True), (2000, 64, False), (2000, 128, False), (2000, 300, True)]


@pytest.fixture(scope="module")
def configs(_gpu: None) -> list[ForwardKernelConfig]:
    chosen = [
        *table_configs(),
        *rule_configs(),
        *get_kernel_progression_configs(),
        *get_sm90_kernel_progression_configs(),
    ]
    here = that_run_on(chosen, "cuda")
    instances = [KernelId(cfg, variant) for cfg in here for variant in VARIANTS]
    load_kernels(instances, target_of(torch.device("cuda")))  # compilers run side by side
    return here


@pytest.fixture(scope="module")
def tallies(configs: list[ForwardKernelConfig]) -> Iterator[dict[KernelId, Tally]]:
    """What came of the soak; the log is kept, also of one that failed."""
    found: dict[KernelId, Tally] = {}
    started = time.monotonic()
    try:
        soak(configs, SoakPlan(random_cases=RANDOM_CASES, seconds=SECONDS), "cuda", tallies=found)
    finally:
        LOG.parent.mkdir(parents=True, exist_ok=True)
        write_csv(LOG, found.values(), environment_stamp())
        cases = [tally.cases for tally in found.values()]
        print(
            f"{len(found)} kernels, {min(cases, default=0)} to {max(cases, default=0)} problems "
            f"each, {sum(tally.reruns for tally in found.values())} reruns in "
            f"{time.monotonic() - started:.0f} s: {LOG}"
        )
    yield found


def test_every_kernel_is_right_everywhere(
    configs: list[ForwardKernelConfig], tallies: dict[KernelId, Tally]
) -> None:
    assert set(tallies) == {KernelId(c, v) for c in configs for v in VARIANTS}
    wrong = [verdict for tally in tallies.values() for verdict in tally.failures]
    lines = [
        f"{v.sentence}\n  {reproduce(v.instance.config.short_form(), v.case)}" for v in wrong[:10]
    ]
    assert not wrong, f"{len(wrong)} failures, the first:\n" + "\n".join(lines)


def test_no_kernel_was_left_out_for_lack_of_time(
    tallies: dict[KernelId, Tally],
) -> None:
    """What a kernel that takes few problems gets; other kernels get more."""
    assert min(tally.cases for tally in tallies.values()) >= 10


@pytest.mark.parametrize(("seq_len_q", "seq_len_k", "causal"), ONCE_WRONG)
def test_problems_that_were_once_wrong(
    seq_len_q: int, seq_len_k: int, causal: bool, configs: list[ForwardKernelConfig]
) -> None:
    load = CardLoad()
    for dtype in {cfg.dtype for cfg in configs}:
        case = SoakCase(Problem(dtype, 128, 4, 18, 3, seq_len_q, seq_len_k), Variant(causal))
        prepared = prepare(case, "cuda")
        for cfg in configs:
            if (cfg.dtype, cfg.d_head) == (dtype, 128):
                instance = KernelId(cfg, case.variant)
                verdict = check(instance, prepared, reruns=RERUNS, load=load)
                assert verdict.ok, verdict.sentence
    torch.cuda.synchronize()
