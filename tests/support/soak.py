"""Draws cases, checks kernels on them, and describes the failures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from random import Random

from flashsmith.configs import ForwardKernelConfig, KernelId
from flashsmith.lab.soak import EMULATOR, SoakCase, check, prepare, random_case, reproduce
from flashsmith.lab.soak.launches import Prepared, SoakLaunch, make_launch, prepare_for


def failures(cfg: ForwardKernelConfig, cases: Iterable[SoakCase], reruns: int) -> str:
    """Returns the failures in words, with the commands that reproduce them."""
    verdicts = [check(case.kernel(cfg), prepare(case, "cpu"), reruns=reruns) for case in cases]
    return "\n".join(
        f"{verdict.sentence}\n  {reproduce(cfg.short_form(), verdict.case)}"
        for verdict in verdicts
        if not verdict.ok
    )


def random_cases(kernel: KernelId) -> Iterator[SoakCase]:
    """Yields problems without end, the same in every run: tensors with gaps, rows shorter than
    d_head, hidden infinities."""
    rng = Random(f"{kernel}")
    while True:
        yield random_case(rng, kernel.config, kernel.variant, EMULATOR)


def right_launch(kernel: KernelId, case: SoakCase, prepared: Prepared, seed: int) -> SoakLaunch:
    """Runs a kernel into memory that was NaN, compares with the truth, and returns the launch.

    seed: The order of the warps.
    """
    launch = make_launch(kernel, prepared)
    launch.results.poison(math.nan)
    launch.run(seed)
    compared = launch.compare()
    assert all(each.ok for each in compared.values()), (kernel.name, case, compared)
    return launch


def assert_right_in_random_problems(kernel: KernelId, cases: int) -> None:
    for seed, case in enumerate(islice(random_cases(kernel), cases)):
        right_launch(kernel, case, prepare_for(kernel.config, case, "cpu"), seed)
