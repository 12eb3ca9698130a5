"""Built kernels, as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flashsmith.cli.tables import print_table
from flashsmith.configs import DType
from flashsmith.jit import KernelResources, Module


def built_rows(modules: Iterable[Module]) -> list[dict[str, Any]]:
    """Returns one row for each function of each module; ptxas figures are None for the emulator."""
    return [
        {
            "kernel": module.name,
            "dtype": str(DType(module.manifest["config"]["dtype"])),
            "d_head": module.manifest["config"]["d_head"],
            "target": module.target.kind,
            "arch": used.arch if used else None,
            "registers": used.registers if used else None,
            "spilled_bytes": used.spilled if used else None,
            "shared_bytes": module.manifest["dynamic_shared_bytes"] + (used.shared if used else 0),
            "module": str(module.path),
        }
        for module in modules
        for used in _functions(module)
    ]


def _functions(module: Module) -> Sequence[KernelResources | None]:
    return module.resources or [None]


def print_built(rows: Iterable[dict[str, Any]]) -> None:
    columns = ("kernel", "target", "arch", "registers", "spilled_bytes", "shared_bytes")
    headers = ("kernel", "target", "arch", "registers", "spills (B)", "smem (B)")
    print_table(headers, [[row[column] for column in columns] for row in rows])
