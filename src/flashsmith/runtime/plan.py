"""The plan of one call on its device: launches in order, and the memory that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Launch:
    """One kernel's launch over a grid."""

    grid: tuple[int, int, int]
    cluster: int  # thread blocks along x
    threads: int  # of a thread block
    shared_memory_bytes: int  # of a thread block, dynamic


@dataclass(frozen=True)
class Plan:
    """The launches of one call.

    workspace_bytes: Bytes of global memory that the call needs beside its tensors.
    zeroed_bytes: How many bytes at the beginning of the workspace must be zero; the launches leave
        them zero.
    counter_bytes: Bytes of counters, in a separate allocation, that must be zero; the launches
        leave them zero.
    n_parts: The parts into which a backward divides the query heads of each group.
    """

    launches: tuple[Launch, ...]
    workspace_bytes: int
    zeroed_bytes: int
    counter_bytes: int = 0
    n_parts: int = 1

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Plan:
        """Returns the plan that a library reports (`plan` in csrc/host/exports.cpp)."""
        launches = tuple(_launch(each) for each in told["launches"])
        sizes = ("workspace_bytes", "zeroed_bytes", "counter_bytes", "n_parts")
        return cls(launches, *(int(told[name]) for name in sizes))


NOTHING = Plan((), workspace_bytes=0, zeroed_bytes=0)


def _launch(told: Mapping[str, int]) -> Launch:
    x, y, z = (int(told[f"grid_{axis}"]) for axis in "xyz")
    sizes = (int(told[name]) for name in ("cluster", "threads", "shared_memory_bytes"))
    return Launch((x, y, z), *sizes)
