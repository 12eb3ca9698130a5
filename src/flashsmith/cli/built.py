"""Kernels of built libraries, as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flashsmith.cli.tables import print_table
from flashsmith.configs import DType
from flashsmith.jit import KernelResources, Library


def built_rows(library: Library) -> list[dict[str, Any]]:
    """Returns one row for each kernel and architecture; ptxas figures are None for the emulator."""
    return [
        {
            "kernel": kernel["name"],
            "dtype": str(DType(kernel["config"]["dtype"])),
            "d_head": kernel["config"]["d_head"],
            "target": library.target.kind,
            "arch": used.arch if used else None,
            "registers": used.registers if used else None,
            "spilled_bytes": used.spilled if used else None,
            "shared_bytes": kernel["dynamic_shared_bytes"] + (used.shared if used else 0),
            "library": str(library.path),
        }
        for kernel in library.kernels.values()
        for used in _resources(kernel)
    ]


def _resources(kernel: dict[str, Any]) -> Sequence[KernelResources | None]:
    return [KernelResources(**figures) for figures in kernel["resources"]] or [None]


def print_built(rows: Iterable[dict[str, Any]]) -> None:
    columns = ("kernel", "target", "arch", "registers", "spilled_bytes", "shared_bytes")
    headers = ("kernel", "target", "arch", "registers", "spills (B)", "smem (B)")
    print_table(headers, [[row[column] for column in columns] for row in rows])
