"""Every synchronisation site of the split-KV kernels is needed: the tests notice when one is
dropped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flashsmith.configs import DecodeKernelConfig, KernelId
from flashsmith.errors import EmulatorFault
from flashsmith.jit import Target
from flashsmith.jit.sources import PACKAGE_SOURCES
from flashsmith.reference import Semantics
from flashsmith.runtime import Site, emulation, find_decode, load_kernels
from support.decoding import (
    HEURISTICS,
    TEAMS,
    VARIED,
    WGMMA,
    Requests,
    assert_near_truth,
    assert_same_bits,
    in_pages,
    launch,
    requests,
)

# The source lines of these sites say that the emulator does not see what they order, because its
# warps meet at each product, or that nothing depends on it but speed.
UNSEEN = ("order in global memory", "beyond what the emulator sees", "for speed alone")
SEEDS = 6  # some faults appear only if a lane falls far behind
KERNELS: list[DecodeKernelConfig] = [
    HEURISTICS[0],
    HEURISTICS[4],
    *VARIED[:3],
    TEAMS[0],
    TEAMS[4],
    *WGMMA[:2],
]


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    load_kernels([KernelId(cfg) for cfg in KERNELS], Target.emulator())


def calls_of(cfg: DecodeKernelConfig) -> list[tuple[Requests, int]]:
    """Returns calls with a work tile a thread block, with one work tile for all blocks, with few
    splits and with so many that the combine kernel combines them, and with one request so much
    longer than the others that the schedule is stream-K: blocks have several work tiles then, or,
    where the combine kernel combines, parts of several."""
    n_q = 1 if cfg.family == "sm80" else 40
    short = requests(cfg, (70, 3, 190, 64, 130, 20), n_q=n_q)
    long = requests(cfg, (900,), n_q=n_q, heads=(2, 1))
    uneven = requests(cfg, (1, 4100, 70, 3, 64, 90, 50, 80, 60), n_q=n_q, heads=(2, 1))
    apart = requests(cfg, (4000, 100, 70), n_q=max(n_q, 8), heads=(2, 1))
    rows = requests(cfg, (900, 300), n_q=max(n_q, 8), heads=(2, 1))
    calls = [(short, 1), (short, 0), (long, 0), (long, 3), (long, 8), (rows, 16), (uneven, 0)]
    return [*calls, (apart, 0)]


def noticed(cfg: DecodeKernelConfig, call: tuple[Requests, int], site: Site, seed: int) -> bool:
    """Returns whether a run without this site faults or changes the result."""
    asked, splits = call
    kernel = find_decode(KernelId(cfg), Target.emulator())
    placed = in_pages(asked, 16)
    good = launch(kernel, asked.q, placed, Semantics(), splits, seed=seed)
    try:
        found = launch(kernel, asked.q, placed, Semantics(), splits, seed=seed, dropped=site)
        assert_same_bits(good, found)
        assert_near_truth(found, asked)
    except (EmulatorFault, AssertionError):
        return True
    return False


def sites_of(cfg: DecodeKernelConfig, call: tuple[Requests, int]) -> set[Site]:
    asked, splits = call
    kernel = find_decode(KernelId(cfg), Target.emulator())
    launch(kernel, asked.q, in_pages(asked, 16), Semantics(), splits)
    with emulation(kernel) as emulator:
        return set(emulator.sites())


def is_seen(site: Site) -> bool:
    return not any(
        mark in line
        for mark in UNSEEN
        for source in (PACKAGE_SOURCES.csrc / "include").rglob(site.file)
        for line in source.read_text().splitlines()[site.line - 1 : site.line]
    )


def test_every_dropped_site_is_noticed(record_property: Callable[[str, object], None]) -> None:
    """It is enough that one kernel notices: a warp that keeps partial results in its own ring waits
    for no other warp."""
    sites: set[Site] = set()
    unnoticed: set[Site] = set()
    for cfg in KERNELS:
        for call in calls_of(cfg):
            found = sites_of(cfg, call)
            unnoticed |= {site for site in found - sites if is_seen(site)}
            sites |= found
            for seed in range(SEEDS):
                unnoticed -= {site for site in unnoticed & found if noticed(cfg, call, site, seed)}
    kinds = {"barrier_sync", "warp_sync", "named_barrier_sync", "cp_async_wait_group"}
    kinds |= {"mbarrier_wait_parity", "mbarrier_arrive", "fence_proxy_async", "wgmma_wait_group"}
    assert {site.kind for site in sites} >= kinds
    record_property("sites", len(sites))
    assert not unnoticed, f"dropping these changed nothing: {sorted(map(str, unnoticed))}"
