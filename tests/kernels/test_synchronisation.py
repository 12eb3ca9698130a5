"""Every synchronisation site of the forward kernels is needed: the tests notice when one is
dropped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flashsmith.configs import KernelId
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.errors import EmulatorFault
from flashsmith.runtime import Kernel, Site, emulation
from support import sm80_kernels
from support.kernels import SYNCHRONISATION, both_variants
from support.problems import Emulated, Tensors, random_qkv, run

SEEDS = 12  # some faults appear only if a lane falls far behind
KINDS = {
    SM80_FORWARD.name: {"barrier_sync"},
    SM90_FORWARD.name: {"mbarrier_wait_parity", "wgmma_wait_group"},
}


def noticed(kernel: Kernel, site: Site, qkv: Tensors, good: torch.Tensor, seed: int) -> bool:
    """Returns whether a run without this site faults, changes the result, or leaves its queue
    dirty."""
    with emulation(kernel, dropped=site, count=False, seed=seed):
        try:
            return not torch.equal(run(kernel, qkv), good)
        except (EmulatorFault, AssertionError):
            return True


@pytest.mark.parametrize("instance", SYNCHRONISATION, ids=lambda i: i.slug)
def test_every_dropped_site_is_noticed(
    instance: KernelId,
    emulated: Emulated,
    record_property: Callable[[str, object], None],
) -> None:
    """The problems have more tiles than thread blocks, with many blocks of keys, with few, and with
    one."""
    kernel, cfg = emulated(instance), instance.config
    problems = [
        (2 * cfg.B_r, 4, 2 * cfg.B_r + 2 * cfg.B_c - 20),
        (3 * cfg.B_r - 20, 3, 3 * cfg.B_r - 20),
        (3 * cfg.B_r, 4, cfg.B_c - 4),
    ]
    sites: set[Site] = set()
    unnoticed: set[Site] = set()
    for seq_len_q, heads, seq_len_k in problems:
        qkv = random_qkv(cfg, seq_len_q, heads=heads, seq_len_k=seq_len_k)
        with emulation(kernel) as emulator:
            good = run(kernel, qkv)
            found = set(emulator.sites())
        unnoticed |= found - sites
        sites |= found
        for seed in range(SEEDS):
            ran = unnoticed & found
            unnoticed -= {site for site in ran if noticed(kernel, site, qkv, good, seed)}
    assert KINDS[cfg.family] <= {site.kind for site in sites}
    record_property("sites", len(sites))
    record_property("noticed", len(sites) - len(unnoticed))
    assert not unnoticed, f"dropping these changed nothing: {sorted(map(str, unnoticed))}"


@pytest.mark.parametrize("instance", both_variants(sm80_kernels.SYNCHRONISED), ids=lambda i: i.slug)
def test_sm80_synchronises_no_more_than_it_must(instance: KernelId, emulated: Emulated) -> None:
    """Each block of K and of V needs a barrier and a wait; one more is needed where Q goes to
    registers."""
    kernel, cfg = emulated(instance), instance.config
    with emulation(kernel) as emulator:
        run(kernel, random_qkv(cfg))
        sites = emulator.sites()
    waits = sum(site.kind == "cp_async_wait_group" for site in sites)
    barriers = sum(site.kind == "barrier_sync" for site in sites)
    per_visit = 2 + (cfg.Q_mma_load_K_tiles == 0)
    assert (barriers, waits) == (per_visit, per_visit if cfg.async_copy else 0)
