"""The sm90 kernels are synchronised: nothing that synchronises can be left out unnoticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flashsmith.configs import FORWARD_VARIANTS, ForwardKernelInstance
from flashsmith.errors import EmulatorFault
from flashsmith.runtime import Kernel, Site, emulation
from problems import Tensors, random_qkv, run
from sm90_kernels import LAST, PROGRESSION, RULE, VARIED

INSTANCES = [
    ForwardKernelInstance(cfg, variant)
    for cfg in (
        PROGRESSION[0],
        PROGRESSION[1],
        LAST,
        RULE[0],
        *(VARIED[i] for i in (0, 1, 6, 7, 8, 9)),
    )
    for variant in FORWARD_VARIANTS
]


def noticed(kernel: Kernel, site: Site, qkv: Tensors, good: torch.Tensor, seed: int) -> bool:
    """Whether a run without this site faults, gives another result, or leaves its queue dirty."""
    with emulation(kernel, dropped=site, count=False, seed=seed):
        try:
            return not torch.equal(run(kernel, qkv), good)
        except (EmulatorFault, AssertionError):
            return True


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i.slug)
def test_every_dropped_site_is_noticed(
    instance: ForwardKernelInstance,
    emulated_sm90: Callable[[ForwardKernelInstance], Kernel],
    record_property: Callable[[str, object], None],
) -> None:
    """In problems with more tiles than blocks: of many blocks of keys, of few, of one."""
    kernel, cfg = emulated_sm90(instance), instance.config
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
        for seed in range(12):  # some need a lane that falls far behind
            ran = unnoticed & found
            unnoticed -= {site for site in ran if noticed(kernel, site, qkv, good, seed)}
    assert {"mbarrier_wait_parity", "wgmma_wait_group"} <= {site.kind for site in sites}
    record_property("sites", len(sites))
    record_property("noticed", len(sites) - len(unnoticed))
    assert not unnoticed, f"dropping these changed nothing: {sorted(map(str, unnoticed))}"
