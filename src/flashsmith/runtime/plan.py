"""What one call does on its device: launches in order, and the memory that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Launch:
    """One kernel over its grid."""

    grid: tuple[int, int, int]
    cluster: int  # blocks along x
    threads: int  # of a block
    shared_memory_bytes: int  # of a block, dynamic


@dataclass(frozen=True)
class Plan:
    """The launches of one call.

    workspace_bytes: Global memory that the call needs beside its tensors.
    zeroed_bytes: How many of them, from the first, have to be zero; the launches leave them so.
    counter_bytes: Zeros in memory of their own, which the launches leave so.
    """

    launches: tuple[Launch, ...]
    workspace_bytes: int
    zeroed_bytes: int
    counter_bytes: int = 0

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Plan:
        """Returns what a library tells (`plan` in csrc/host/exports.cpp)."""
        launches = tuple(_launch(each) for each in told["launches"])
        sizes = ("workspace_bytes", "zeroed_bytes", "counter_bytes")
        return cls(launches, *(int(told[name]) for name in sizes))


NOTHING = Plan((), workspace_bytes=0, zeroed_bytes=0)


def _launch(told: Mapping[str, int]) -> Launch:
    x, y, z = (int(told[f"grid_{axis}"]) for axis in "xyz")
    sizes = (int(told[name]) for name in ("cluster", "threads", "shared_memory_bytes"))
    return Launch((x, y, z), *sizes)
