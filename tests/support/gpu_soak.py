"""Soaks a set of kernels on the GPU, in parts that run in parallel."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch

from flashsmith.configs import (
    KernelConfig,
    KernelId,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_sm90_kernel_progression_configs,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.lab.bench.stamp import environment_stamp
from flashsmith.lab.soak import (
    SoakPlan,
    Tally,
    reproduce,
    soak,
    soaked_kernels,
    table_configs,
    that_run_on,
    write_csv,
)
from flashsmith.lab.soak.session import groups_of
from flashsmith.runtime import load_kernels
from flashsmith.runtime.device import target_of
from support.paths import ROOT

# The parts of each set: about one for each dtype and d_head, so that the longest ends early.
PARTS = {"forward": 10, "backward": 10, "decode": 10, "fp8": 2}
SECONDS = 20  # for a part; building and MIN_CASES may take longer
RANDOM_CASES = 20  # for each dtype and d_head, after the cases at tile boundaries
MIN_CASES = 10  # for each kernel
LOGS = ROOT / "build" / "gpu"


def kernels_of_set(key: str) -> list[KernelId]:
    """Returns the kernels of a set of ``get_kernel_configs``; "forward" is the kernels of tables,
    heuristics and both progressions."""
    configs: Sequence[KernelConfig]
    if key == "forward":
        configs = [
            *table_configs(),
            *FORWARD.heuristic_configs(),
            *get_kernel_progression_configs(),
            *get_sm90_kernel_progression_configs(),
        ]
    else:
        configs = get_kernel_configs(key)
    return soaked_kernels(that_run_on(configs, "cuda"))


def kernels_of_part(key: str, part: int) -> list[KernelId]:
    """Returns a part of a set's kernels; kernels that can share cases are in the same part."""
    groups = groups_of(kernels_of_set(key))[part :: PARTS[key]]
    return [kernel for group in groups for kernel in group]


def assert_part_is_right(key: str, part: int) -> None:
    """Soaks a part of a set. The log is kept, even of a soak that was cut off."""
    kernels = kernels_of_part(key, part)
    load_kernels(kernels, target_of(torch.device("cuda")))  # all compilers run in parallel
    plan = SoakPlan(random_cases=RANDOM_CASES, seconds=SECONDS, min_cases=MIN_CASES)
    tallies: dict[KernelId, Tally] = {}
    started = time.monotonic()
    try:
        soak(kernels, plan, "cuda", tallies=tallies)
    finally:
        LOGS.mkdir(parents=True, exist_ok=True)
        write_csv(LOGS / f"soak_{key}_{part}.csv", tallies.values(), environment_stamp())
    minimum = min(tally.cases for tally in tallies.values())
    print(f"{len(kernels)} kernels, {minimum} problems or more, {time.monotonic() - started:.0f} s")
    assert_none_wrong(tallies)
    assert minimum >= MIN_CASES, f"a kernel takes only {minimum} problems of those that were drawn"


def assert_none_wrong(tallies: Mapping[KernelId, Tally]) -> None:
    """Fails with the first failures, and the commands that reproduce them."""
    wrong = [verdict for tally in tallies.values() for verdict in tally.failures]
    lines = [
        f"{v.sentence}\n  {reproduce(v.instance.config.short_form(), v.case)}" for v in wrong[:10]
    ]
    assert not wrong, f"{len(wrong)} failures, the first:\n" + "\n".join(lines)
