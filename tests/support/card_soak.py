"""The soak of a set of kernels on the card."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch

from flashsmith.bench import environment_stamp
from flashsmith.configs import KernelId, get_kernel_configs
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of
from flashsmith.soak import (
    SoakPlan,
    Tally,
    reproduce,
    soak,
    soaked_kernels,
    that_run_on,
    write_csv,
)
from support.paths import ROOT

SECONDS = 180  # of all kernels; building comes on top
RANDOM_CASES = 20  # of each dtype and d_head, after the cases at the seams of tiles
LEAST_CASES = 10  # of each kernel: fewer, and time was too short
LOGS = ROOT / "build" / "gpu"


def assert_set_is_right(key: str) -> None:
    """Soaks the kernels of a set, as ``get_kernel_configs`` names it. The log is kept."""
    kernels = soaked_kernels(that_run_on(get_kernel_configs(key), "cuda"))
    load_kernels(kernels, target_of(torch.device("cuda")))
    started = time.monotonic()
    tallies = soak(kernels, SoakPlan(random_cases=RANDOM_CASES, seconds=SECONDS), "cuda")
    LOGS.mkdir(parents=True, exist_ok=True)
    write_csv(LOGS / f"soak_{key}.csv", tallies.values(), environment_stamp())
    least = min(tally.cases for tally in tallies.values())
    print(f"{len(kernels)} kernels, {least} problems or more, {time.monotonic() - started:.0f} s")
    assert_none_wrong(tallies)
    assert least >= LEAST_CASES


def assert_none_wrong(tallies: Mapping[KernelId, Tally]) -> None:
    """Names the first failures, and how to see them again."""
    wrong = [verdict for tally in tallies.values() for verdict in tally.failures]
    lines = [
        f"{v.sentence}\n  {reproduce(v.instance.config.short_form(), v.case)}" for v in wrong[:10]
    ]
    assert not wrong, f"{len(wrong)} failures, the first:\n" + "\n".join(lines)
