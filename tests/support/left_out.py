"""Compares kernels with skip_unseen with those without, which compute all products."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from flashsmith.configs import KernelId
from flashsmith.jit import Target
from flashsmith.lab.soak.case import SoakCase
from flashsmith.lab.soak.launches import Prepared, prepare_for
from flashsmith.runtime import load_kernels
from support.soak import random_cases, right_launch


def without_skips(kernel: KernelId) -> KernelId:
    config: Any = kernel.config
    return replace(kernel, config=replace(config, skip_unseen=False))


def build_both(kernels: Iterable[KernelId]) -> None:
    """Builds kernels with skip_unseen, and the same without, for the emulator."""
    load_kernels([each for k in kernels for each in (k, without_skips(k))], Target.emulator())


def assert_same_bits(kernel: KernelId, cases: int) -> None:
    """Runs a kernel with and without skip_unseen on random problems of finite values, and compares
    both with the truth, and their bits. A hidden row that is infinite would reach the results of
    one alone, by a weight of 0."""
    finite = (case for case in random_cases(kernel) if case.values.are_finite)
    in_any_order = set() if kernel.config.is_deterministic else {"dq"}
    for seed, case in enumerate(islice(finite, cases)):
        prepared = prepare_for(kernel.config, case, "cpu")
        found = _right_results(kernel, case, prepared, seed)
        expected = _right_results(without_skips(kernel), case, prepared, seed)
        different = {name for name in found if not torch.equal(found[name], expected[name])}
        assert different <= in_any_order, case


def _right_results(
    kernel: KernelId, case: SoakCase, prepared: Prepared, seed: int
) -> dict[str, torch.Tensor]:
    """Returns copies of what the kernel writes, with a number in place of NaN.

    seed: The order of the warps.
    """
    launch = right_launch(kernel, case, prepared, seed)
    return {name: t.nan_to_num(nan=7.0) for name, t in launch.results.tensors.items()}
