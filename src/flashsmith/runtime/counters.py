"""The emulator's counters in words, and the table that compares kernels by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Counter(NamedTuple):
    """A counter's heading in tables, and what it counts."""

    heading: str
    meaning: str


# The keys are the names in csrc/emulator/launch.h; tables have this order.
COUNTERS = {
    "mma": Counter("mma", "matrix products of a warp (mma.m16n8k16)"),
    "ldmatrix": Counter("ldmatrix", "loads of matrix fragments from shared memory by a warp"),
    "longest_ldmatrix_run": Counter("longest ldmatrix run", "most ldmatrix between two mma"),
    "longest_mma_run": Counter("longest mma run", "most mma between two ldmatrix"),
    "cp_async": Counter("cp.async", "asynchronous copies to shared memory by a warp"),
    "cp_async_in_flight_mma": Counter(
        "mma under copies", "mma that a warp issues while its cp.async are in flight"
    ),
    "wgmma": Counter("wgmma", "matrix products of a warpgroup (wgmma.m64nNk16)"),
    "wgmma_flops": Counter("wgmma FLOP", "floating-point operations of the wgmma"),
    "wgmma_shared_bytes": Counter("wgmma smem B", "bytes of shared memory that wgmma read"),
    "tma_loads": Counter("TMA loads", "bulk copies to shared memory"),
    "tma_load_bytes": Counter("TMA load B", "bytes of the bulk copies to shared memory"),
    "tma_stores": Counter("TMA stores", "bulk copies from shared memory"),
    "tma_store_bytes": Counter("TMA store B", "bytes of the bulk copies from shared memory"),
    "mbarrier_waits": Counter("mbarrier waits", "threads that wait for a phase of an mbarrier"),
    "mbarrier_arrivals": Counter("mbarrier arrivals", "threads that arrive at an mbarrier"),
    "named_barriers": Counter("named barriers", "completed barriers of some warps of a block"),
    "barriers": Counter("barriers", "completed barriers of a whole block"),
    "shuffles": Counter("shuffles", "exchanges between the lanes of a warp"),
    "shared_wavefronts": Counter(
        "smem wavefronts", "cycles in which ld, st, ldmatrix or stmatrix use shared memory"
    ),
    "shared_wavefronts_ideal": Counter(
        "smem ideal", "these cycles if no two lanes wanted different words of one bank"
    ),
    "bank_conflicts": Counter("bank conflicts", "smem wavefronts beyond the ideal"),
    "global_load_bytes": Counter("load B", "bytes that warps load from global memory"),
    "global_load_sectors": Counter(
        "sectors read", "32-byte sectors that warps load from global memory"
    ),
    "global_store_bytes": Counter("store B", "bytes that warps store to global memory"),
    "global_store_sectors": Counter(
        "sectors written", "32-byte sectors that warps store to global memory"
    ),
}
# The counters for which a table of several kernels has room.
IN_TABLES = (
    "mma", "ldmatrix", "cp_async", "wgmma", "wgmma_shared_bytes", "tma_load_bytes",
    "tma_store_bytes", "mbarrier_waits", "mbarrier_arrivals", "named_barriers", "barriers",
    "shared_wavefronts", "bank_conflicts", "global_load_sectors", "global_store_sectors",
)  # fmt: skip

Counts = Mapping[str, "int | None"]


def with_conflicts(counts: Counts) -> dict[str, int | None]:
    """Returns the counters with ``bank_conflicts``, if the wavefronts were counted."""
    actual, ideal = counts.get("shared_wavefronts"), counts.get("shared_wavefronts_ideal")
    if actual is None or ideal is None:
        return dict(counts)
    return dict(counts) | {"bank_conflicts": actual - ideal}


def table_of(rows: Sequence[Counts]) -> tuple[list[str], list[list[int | None]]]:
    """Returns headings and cells for kernels' counters; a counter that is 0 for all is left out."""
    complete = [with_conflicts(row) for row in rows]
    shown = [name for name in IN_TABLES if any(row.get(name) for row in complete)]
    return (
        [COUNTERS[name].heading for name in shown],
        [[row.get(name) for name in shown] for row in complete],
    )


def explain_headings(headings: Sequence[str]) -> str:
    """Returns one line that says what the headings mean."""
    meanings = {counter.heading: counter.meaning for counter in COUNTERS.values()}
    return "; ".join(f"{name}: {meanings[name]}" for name in headings if name in meanings)
