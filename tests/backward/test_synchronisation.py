"""Every synchronisation site of the backward's kernels is needed: the tests notice when one is
dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from flashsmith.configs import KernelId
from flashsmith.errors import EmulatorFault
from flashsmith.jit import Target
from flashsmith.reference import ReferenceGradients
from flashsmith.runtime import BackwardKernel, Site, emulation, find_backward, load_kernels
from support.backward_kernels import CONFIGS, PLAIN, VARIED, name_of
from support.gradient_calls import Call, call_of
from support.gradients import assert_near_truth, differing, launch_loaded

SEEDS = 6  # some faults appear only if a lane falls far behind
OVERLAPS = {"wait_for_launch_before"}  # in launches that may begin before the one before is over
EARLY = {"thread_arrive_global", "wait_global", "fence_proxy_async_global"}  # conversion of dQ
KINDS = {
    "sm80": {"barrier_sync", "cp_async_wait_group"},
    "sm80 sums": {"barrier_sync", "cp_async_wait_group", "named_barrier_sync"},
    "sm90": {"mbarrier_wait_parity"} | EARLY,
    "sm90 split": {"mbarrier_wait_parity"},
    "sm90 in order": {"wait_global", "release_global", "fence_proxy_async_global"},
    "sm90 sharing keys": {"mbarrier_wait_parity"} | EARLY,
    "sm90 sharing keys in order": {"wait_global", "release_global", "fence_proxy_async_global"},
}


# A variant adds no synchronisation, so that the plain variant stands for each configuration.
KERNELS = {
    family: [
        KernelId(cfg)
        for cfg in CONFIGS
        if name_of(cfg) == family and (cfg in VARIED or cfg.d_head in (64, 128, 192))
    ]
    for family in PLAIN
}


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    load_kernels([kernel for each in KERNELS.values() for kernel in each], Target.emulator())


def noticed(
    loaded: BackwardKernel, call: Call, good: ReferenceGradients, site: Site, seed: int
) -> bool:
    """Returns whether a run without this site faults or changes the result."""
    config = loaded.instance.config
    with emulation(loaded, dropped=site, count=False, seed=seed):
        try:
            found = launch_loaded(loaded, call)
            if differing(config, found, good):
                return True
            assert_near_truth(found, call)
        except (EmulatorFault, AssertionError):
            return True
    return False


def calls_of(kernel: KernelId) -> Iterator[Call]:
    """Yields calls with more blocks on both sides than there are stages, with one block, with many
    blocks of keys alone, and with many heads."""
    cfg, dtype = kernel.config, kernel.config.dtype.to_torch_dtype()
    d_head, rows = cfg.d_head, max(cfg.B_r, 64)
    many, few = (6 * rows - 20, 2 * cfg.B_c - 20), (rows - 4, 40)
    for n_q, n_k in (many, (rows, 5 * cfg.B_c), few, (0, 24 * cfg.B_c)):
        yield call_of(dtype, (1, n_q, 2, d_head), (1, n_k, 1, d_head))
    yield call_of(dtype, (1, 40, 7, d_head), (1, 2 * cfg.B_c, 7, d_head))


@pytest.mark.parametrize("family", KERNELS)
def test_every_dropped_site_is_noticed(
    family: str, record_property: Callable[[str, object], None]
) -> None:
    """It is enough that one kernel of the family notices: where two buffers have as many stages, a
    wait for the one may cover the other."""
    sites: set[Site] = set()
    unnoticed: set[Site] = set()
    for kernel in KERNELS[family]:
        loaded = find_backward(kernel, Target.emulator())
        for call in calls_of(kernel):
            with emulation(loaded) as emulator:
                good = launch_loaded(loaded, call)
                found = set(emulator.sites())
            unnoticed |= found - sites
            sites |= found
            for seed in range(SEEDS):
                ran = unnoticed & found
                unnoticed -= {site for site in ran if noticed(loaded, call, good, site, seed)}
    assert KINDS[family] | OVERLAPS <= {site.kind for site in sites}
    record_property("sites", len(sites))
    record_property("noticed", len(sites) - len(unnoticed))
    assert not unnoticed, f"dropping these changed nothing: {sorted(map(str, unnoticed))}"
