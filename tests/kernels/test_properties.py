"""Random problems, the same in every run, for kernels of all kinds: o, LSE and reruns.

`make soak` draws other problems without end.
"""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from flashsmith.configs import VARIANTS, DType, ForwardKernelConfig, KernelId
from flashsmith.configs.registry import FORWARD
from flashsmith.jit import Target
from flashsmith.lab.soak import (
    EMULATOR,
    random_case,
    table_configs,
    tile_boundary_cases,
)
from flashsmith.lab.soak.session import groups_of
from flashsmith.runtime import load_kernels
from support import sm80_kernels, sm90_kernels
from support.soak import failures

VARIED = [*sm80_kernels.VARIED, *sm90_kernels.VARIED]
RANDOM_CASES = 8  # for each configuration
SAMPLED = 1  # of the tuned tables, for each dtype and d_head
RERUNS = 1  # of random problems, with another order of warps
SMALL = 3_000  # scores of a case at a tile's boundary


def sampled_table_configs() -> list[ForwardKernelConfig]:
    known = {*FORWARD.heuristic_configs(), *VARIED}
    groups = groups_of([KernelId(cfg) for cfg in table_configs() if cfg not in known])
    rng = Random(0)
    return [k.config for group in groups for k in rng.sample(group, min(SAMPLED, len(group)))]


CONFIGS = [*FORWARD.heuristic_configs(), *VARIED, *sampled_table_configs()]
EACH = pytest.mark.parametrize("cfg", CONFIGS, ids=str)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    load_kernels([KernelId(c, v) for c in CONFIGS for v in VARIANTS], Target.emulator())


def test_the_set_is_whole() -> None:
    """The set has at least 300 random problems, the heuristics' choices, tables, and both
    families."""
    assert len(CONFIGS) * RANDOM_CASES >= 300
    assert len(set(CONFIGS)) == len(CONFIGS)
    kinds = {(cfg.family, cfg.dtype, cfg.d_head) for cfg in FORWARD.heuristic_configs()}
    assert kinds == {
        (family.name, dtype, d_head)
        for family in FORWARD.families
        for dtype, d_head in product(DType, family.d_heads)
    }
    assert len(sampled_table_configs()) >= 8


@EACH
def test_random_problems(cfg: ForwardKernelConfig) -> None:
    rng = Random(cfg.short_form())
    variants = [rng.choice(VARIANTS) for _ in range(RANDOM_CASES)]
    wrong = failures(cfg, [random_case(rng, cfg, v, EMULATOR) for v in variants], RERUNS)
    assert not wrong, wrong


@EACH
def test_small_problems_at_the_tile_boundaries(cfg: ForwardKernelConfig) -> None:
    """The cases are at tile boundaries: the first rows that a warpgroup masks, lengths 0 and 1,
    refusals."""
    cases = [case for variant in VARIANTS for case in tile_boundary_cases(cfg, variant, EMULATOR)]
    wrong = failures(cfg, [case for case in cases if case.problem.n_scores <= SMALL], 0)
    assert not wrong, wrong
