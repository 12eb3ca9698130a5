"""The soak on the card: every kernel of the shipped tables, the progressions and the rules."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from flashsmith.bench import environment_stamp
from flashsmith.configs import (
    DType,
    KernelId,
    get_kernel_progression_configs,
    get_sm90_kernel_progression_configs,
)
from flashsmith.problem import Problem
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of
from flashsmith.soak import (
    RERUNS,
    CardLoad,
    Meaning,
    SoakCase,
    SoakPlan,
    Tally,
    check,
    prepare,
    rule_configs,
    soak,
    soaked_kernels,
    table_configs,
    that_run_on,
    write_csv,
)
from support.card_soak import LEAST_CASES, LOGS, RANDOM_CASES, SECONDS, assert_none_wrong

pytestmark = pytest.mark.gpu

LOG = LOGS / "soak.csv"
# Problems on which kernels once gave other rows in each run: one block of keys a tile, many tiles
# for each thread block; batch 4, 18 heads over 3.
ONCE_WRONG = [(500, 500, True), (2000, 64, False), (2000, 128, False), (2000, 300, True)]


@pytest.fixture(scope="module")
def kernels(_gpu: None) -> list[KernelId]:
    chosen = [
        *table_configs(),
        *rule_configs(),
        *get_kernel_progression_configs(),
        *get_sm90_kernel_progression_configs(),
    ]
    kernels = soaked_kernels(that_run_on(chosen, "cuda"))
    load_kernels(kernels, target_of(torch.device("cuda")))  # compilers run side by side
    return kernels


@pytest.fixture(scope="module")
def tallies(kernels: list[KernelId]) -> Iterator[dict[KernelId, Tally]]:
    """What came of the soak; the log is kept, also of one that failed."""
    found: dict[KernelId, Tally] = {}
    started = time.monotonic()
    try:
        soak(kernels, SoakPlan(random_cases=RANDOM_CASES, seconds=SECONDS), "cuda", tallies=found)
    finally:
        LOGS.mkdir(parents=True, exist_ok=True)
        write_csv(LOG, found.values(), environment_stamp())
        cases = [tally.cases for tally in found.values()]
        print(
            f"{len(found)} kernels, {min(cases, default=0)} to {max(cases, default=0)} problems "
            f"each, {sum(tally.reruns for tally in found.values())} reruns in "
            f"{time.monotonic() - started:.0f} s: {LOG}"
        )
    yield found


def test_every_kernel_is_right_everywhere(
    kernels: list[KernelId], tallies: dict[KernelId, Tally]
) -> None:
    assert set(tallies) == set(kernels)
    assert_none_wrong(tallies)


def test_no_kernel_was_left_out_for_lack_of_time(
    tallies: dict[KernelId, Tally],
) -> None:
    """What a kernel that takes few problems gets; other kernels get more."""
    assert min(tally.cases for tally in tallies.values()) >= LEAST_CASES


@pytest.mark.parametrize(("seq_len_q", "seq_len_k", "causal"), ONCE_WRONG)
def test_problems_that_were_once_wrong(
    seq_len_q: int, seq_len_k: int, causal: bool, kernels: list[KernelId]
) -> None:
    load = CardLoad()
    for dtype in DType:
        problem = Problem(dtype, 128, 4, 18, 3, seq_len_q, seq_len_k)
        case = SoakCase(problem, Meaning(causal=causal))
        prepared = prepare(case, "cuda")
        for kernel in kernels:
            if kernel.config.serves(problem) and case.kernel(kernel.config) == kernel:
                verdict = check(kernel, prepared, reruns=RERUNS, load=load)
                assert verdict.ok, verdict.sentence
    torch.cuda.synchronize()
