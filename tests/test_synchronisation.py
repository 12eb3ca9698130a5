"""The kernels are synchronised: any order of warps gives the same bits, nothing can be left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from conftest import INSTANCES, SYNCHRONISATION
from flashsmith.configs import CAUSAL, FULL, ForwardKernelInstance
from flashsmith.errors import EmulatorFault
from flashsmith.runtime import Kernel, Site, emulation
from problems import random_qkv, run

Emulated = Callable[[ForwardKernelInstance], Kernel]

COMBINATIONS = [ForwardKernelInstance(c, v) for c in SYNCHRONISATION for v in (FULL, CAUSAL)]
ALL = sorted({*INSTANCES, *COMBINATIONS})


@pytest.mark.parametrize("instance", ALL, ids=lambda i: i.slug)
def test_ten_warp_orders_are_bitwise_equal(
    instance: ForwardKernelInstance, emulated: Emulated
) -> None:
    kernel, qkv = emulated(instance), random_qkv(instance.config)
    first = run(kernel, qkv)
    assert not first.isnan().any()
    for seed in range(1, 10):
        with emulation(kernel, seed=seed, count=False):
            assert torch.equal(run(kernel, qkv), first), f"seed {seed}"


def noticed(kernel: Kernel, site: Site, qkv: tuple[torch.Tensor, ...], good: torch.Tensor) -> bool:
    """Whether a run without this site faults or gives another result."""
    with emulation(kernel, dropped=site, count=False):
        try:
            return not torch.equal(run(kernel, qkv), good)  # type: ignore[arg-type]
        except EmulatorFault:
            return True


@pytest.mark.parametrize("instance", ALL, ids=lambda i: i.slug)
def test_every_dropped_site_is_noticed(
    instance: ForwardKernelInstance,
    emulated: Emulated,
    record_property: Callable[[str, object], None],
) -> None:
    kernel, qkv = emulated(instance), random_qkv(instance.config)
    with emulation(kernel) as emulator:
        good = run(kernel, qkv)
        sites = emulator.sites()
    waits = sum(site.kind == "cp_async_wait_group" for site in sites)
    barriers = sum(site.kind == "barrier_sync" for site in sites)
    per_visit = 2 + (instance.config.Q_mma_load_K_tiles == 0)
    assert (barriers, waits) == (per_visit, per_visit if instance.config.async_copy else 0)
    unnoticed = [str(site) for site in sites if not noticed(kernel, site, qkv, good)]
    record_property("sites", len(sites))
    record_property("noticed", len(sites) - len(unnoticed))
    assert not unnoticed, f"dropping these changed nothing: {unnoticed}"
