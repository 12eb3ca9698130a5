"""Random problems, the same every time, for kernels of all kinds: o, log-sum-exp and reruns.

`make soak` draws others without end.
"""

from __future__ import annotations

from random import Random

import pytest

from flashsmith.configs import DType, ForwardKernelConfig, ForwardKernelInstance
from flashsmith.configs.sm90.forward import SUPPORTED_D_HEADS
from flashsmith.soak import (
    EMULATOR,
    SoakCase,
    check,
    load_all,
    prepare,
    random_case,
    reproduce,
    rule_configs,
    seam_cases,
    table_configs,
)
from flashsmith.soak.session import groups_of
from sm90_kernels import VARIED

RANDOM_CASES = 8  # of each configuration
SAMPLED = 1  # of the tuned tables, of each dtype and d_head
RERUNS = 1  # of random problems, with another order of warps
SMALL = 3_000  # scores of a seam's case


def sampled_table_configs() -> list[ForwardKernelConfig]:
    known = {*rule_configs(), *VARIED}
    groups = groups_of([cfg for cfg in table_configs() if cfg not in known])
    rng = Random(0)
    return [cfg for group in groups for cfg in rng.sample(group, min(SAMPLED, len(group)))]


CONFIGS = [*rule_configs(), *VARIED, *sampled_table_configs()]
EACH = pytest.mark.parametrize("cfg", CONFIGS, ids=str)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    load_all(CONFIGS, "cpu")


def failures(cfg: ForwardKernelConfig, cases: list[SoakCase], reruns: int) -> str:
    """What went wrong, and how to see it again."""
    verdicts = [
        check(ForwardKernelInstance(cfg, case.variant), prepare(case, "cpu"), reruns=reruns)
        for case in cases
    ]
    return "\n".join(
        f"{verdict.sentence}\n  {reproduce(cfg.short_form(), verdict.case)}"
        for verdict in verdicts
        if not verdict.ok
    )


def test_the_set_is_whole() -> None:
    """At least 300 random problems, every rule configuration, tables, both families."""
    assert len(CONFIGS) * RANDOM_CASES >= 300
    assert len(set(CONFIGS)) == len(CONFIGS)
    kinds = {(cfg.family, cfg.dtype, cfg.d_head) for cfg in rule_configs()}
    assert kinds == {
        *(("sm80", dtype, d_head) for dtype in DType for d_head in (64, 128)),
        *(("sm90", dtype, d_head) for dtype in DType for d_head in SUPPORTED_D_HEADS),
    }
    assert len(sampled_table_configs()) >= 8


@EACH
def test_random_problems(cfg: ForwardKernelConfig) -> None:
    rng = Random(cfg.short_form())
    wrong = failures(cfg, [random_case(rng, cfg, EMULATOR) for _ in range(RANDOM_CASES)], RERUNS)
    assert not wrong, wrong


@EACH
def test_small_problems_at_the_seams_of_tiles(cfg: ForwardKernelConfig) -> None:
    """The first rows that a warpgroup masks, lengths 0 and 1, what has to be refused."""
    cases = [case for causal in (False, True) for case in seam_cases(cfg, causal, EMULATOR)]
    wrong = failures(cfg, [case for case in cases if case.n_scores <= SMALL], 0)
    assert not wrong, wrong
