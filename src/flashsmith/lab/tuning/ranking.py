"""Ranks kernels by what the emulator counts, for machines without a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flashsmith.configs import CONFIG_CLASSES, ForwardKernelConfig
from flashsmith.configs.registry import FORWARD

RANKED_BY = (
    "ranked by bytes of shared memory (a warp's wavefront is 128, beside what wgmma and TMA move), "
    "then bytes of global memory, then ldmatrix and waits at mbarriers: counts, not times. What "
    "registers, occupancy and overlap cost is not in them; no table is written."
)
_WAVEFRONT_BYTES = 128
_SECTOR_BYTES = 32


def counting_arch(configs: Iterable[ForwardKernelConfig]) -> str:
    """Returns the oldest architecture that runs all of the kernels."""
    kinds = {type(config) for config in configs} or {FORWARD.families[0].config}
    return max(kinds, key=CONFIG_CLASSES.index).minimum_gpu


def memory_work(counts: Mapping[str, int | None]) -> tuple[int, ...]:
    """Returns the work of the memory system, to sort by: smaller is better, and the first number
    counts most. The tensor cores' work is the same for all kernels."""

    def n(name: str) -> int:
        return counts.get(name) or 0

    copied = n("tma_load_bytes") + n("tma_store_bytes")
    shared = n("shared_wavefronts") * _WAVEFRONT_BYTES + n("wgmma_shared_bytes") + copied
    sectors = n("global_load_sectors") + n("global_store_sectors")
    return shared, sectors * _SECTOR_BYTES + copied, n("ldmatrix") + n("mbarrier_waits")
