"""What the tests share: a kernel cache for the session, the emulated kernels in one library."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

# Kept between sessions, so that only what changed is compiled again.
os.environ.setdefault(
    "FLASHSMITH_CACHE_DIR", str(Path(__file__).parent.parent / "build" / "test-cache")
)

import torch

from flashsmith.configs import (
    CAUSAL,
    FULL,
    FlashForwardKernelConfig,
    ForwardKernelInstance,
    get_autotuning_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
)
from flashsmith.jit import Target, build_library
from flashsmith.runtime import Kernel, find_kernel, load_library
from sm90_kernels import INSTANCES as SM90_INSTANCES

pytest_plugins = ["emulator_program"]

# Every configuration that the emulator checks: the 85 of d_head 128 and the 80 of d_head 64.
CONFIGS = [*get_kernels_to_build(), *get_autotuning_kernel_configs(d_heads=(64,))]
BASE = get_kernel_progression_configs(False)[3]  # async+eager+swizzled+load_2_2_2_tiles

# The base with one knob turned.
KNOBS = {
    "synchronous": replace(BASE, async_copy=False),
    "not eager": replace(BASE, eager_load_blocks=False),
    "not swizzled": replace(BASE, swizzled=False),
    "Q whole": replace(BASE, Q_mma_load_K_tiles=0),
    "K whole": replace(BASE, K_mma_load_K_tiles=0),
    "K four": replace(BASE, K_mma_load_K_tiles=4),
    "V whole": replace(BASE, V_mma_load_K_tiles=0),
    "buffer": replace(BASE, mma_double_buffer_loads=True),
    "buffer, K whole": replace(BASE, mma_double_buffer_loads=True, K_mma_load_K_tiles=0),
    "optimized softmax": replace(BASE, optimized_softmax=True),
}
# Every combination of the knobs that decide which synchronisation a kernel has.
SYNCHRONISATION = [
    replace(BASE, async_copy=a, eager_load_blocks=e, Q_mma_load_K_tiles=q, optimized_softmax=s)
    for a, e, q, s in product((False, True), (False, True), (0, 2), (False, True))
]


def _causal_configs() -> list[FlashForwardKernelConfig]:
    """The progression, and the first and last configuration of every tile, d_head and dtype."""
    by_tiles: dict[tuple[object, ...], list[FlashForwardKernelConfig]] = {}
    for c in [*CONFIGS, *get_kernel_progression_configs(True)]:
        by_tiles.setdefault((c.dtype, c.d_head, c.B_r, c.B_c, c.n_warps), []).append(c)
    ends = [c for group in by_tiles.values() for c in (min(group), max(group))]
    return sorted({*ends, *get_kernel_progression_configs(False)})


CAUSAL_CONFIGS = _causal_configs()
INSTANCES = [
    *(ForwardKernelInstance(c, FULL) for c in sorted({*CONFIGS, *KNOBS.values()})),
    *(ForwardKernelInstance(c, CAUSAL) for c in CAUSAL_CONFIGS),
]


COMBINATIONS = [
    ForwardKernelInstance(c, variant) for c in SYNCHRONISATION for variant in (FULL, CAUSAL)
]


def _find_built(
    instances: Sequence[ForwardKernelInstance], session: pytest.Session
) -> Callable[[ForwardKernelInstance], Kernel]:
    """Builds at once what the session's tests have as a parameter; the rest when it is found."""
    asked = {
        value
        for item in session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        for value in item.callspec.params.values()
        if isinstance(value, ForwardKernelInstance)
    }
    target = Target.emulator()
    if wanted := [instance for instance in instances if instance in asked]:
        load_library(build_library(wanted, target))
    return lambda instance: find_kernel(instance, target)


@pytest.fixture(scope="session")
def emulated(request: pytest.FixtureRequest) -> Callable[[ForwardKernelInstance], Kernel]:
    """Returns the emulated kernel of an instance of the sm80 family."""
    return _find_built([*INSTANCES, *COMBINATIONS], request.session)


@pytest.fixture(scope="session")
def emulated_sm90(request: pytest.FixtureRequest) -> Callable[[ForwardKernelInstance], Kernel]:
    """As ``emulated``, for the sm90 family: a library of its own, so that each is built alone."""
    return _find_built(SM90_INSTANCES, request.session)


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield
