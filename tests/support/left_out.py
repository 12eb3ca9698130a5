"""Compares a kernel that leaves products out with one that computes all of them."""

from __future__ import annotations

import math
from itertools import islice
from random import Random

import torch

from flashsmith.configs import KernelId
from flashsmith.lab.soak import random_case
from flashsmith.lab.soak.case import SoakCase
from flashsmith.lab.soak.draw import EMULATOR
from flashsmith.lab.soak.launches import Prepared, make_launch, prepare_for


def assert_same_bits(fewer: KernelId, all_of_them: KernelId, cases: int) -> None:
    """Runs both kernels on random problems of finite values, and compares both with the truth, and
    their bits: a hidden row that is infinite reaches a result by a weight of 0 alone."""
    rng = Random(f"{fewer}")
    drawn = iter(lambda: random_case(rng, fewer.config, fewer.variant, EMULATOR), None)
    finite = (case for case in drawn if case.values.are_finite)
    for seed, case in enumerate(islice(finite, cases)):
        prepared = prepare_for(fewer.config, case, "cpu")
        found = _right_results(fewer, case, prepared, seed)
        expected = _right_results(all_of_them, case, prepared, seed)
        different = [name for name in found if not torch.equal(found[name], expected[name])]
        assert different == ([] if fewer.config.is_deterministic else ["dq"] * len(different)), case


def _right_results(
    kernel: KernelId, case: SoakCase, prepared: Prepared, seed: int
) -> dict[str, torch.Tensor]:
    """Returns copies of what the kernel writes, with a number in place of NaN.

    seed: The order of the warps.
    """
    launch = make_launch(kernel, prepared)
    launch.results.poison(math.nan)
    launch.run(seed)
    compared = launch.compare()
    assert all(each.ok for each in compared.values()), (kernel.name, case, compared)
    return {name: t.nan_to_num(nan=7.0) for name, t in launch.results.tensors.items()}
