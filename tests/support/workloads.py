"""Makes workloads from the columns of a row: k has the shape of q."""

from __future__ import annotations

from flashsmith.configs import DType, Workload
from flashsmith.configs.workload import K_COLUMNS


def square(dtype: DType, d_head: int, mask: str, batch: int, heads: int, seq_len: int) -> Workload:
    row = {"dtype": str(dtype), "d_head": d_head, "mask": mask}
    return Workload.from_row({**row, "batch": batch, "heads": heads, "seq_len": seq_len})


def changed(workload: Workload, **columns: object) -> Workload:
    """Returns a workload with other values in some columns; k follows q unless it is among them."""
    row = {name: value for name, value in workload.as_row().items() if name not in K_COLUMNS}
    return Workload.from_row({**row, **columns})  # type: ignore[dict-item]
