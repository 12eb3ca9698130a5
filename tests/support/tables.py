"""Makes tables of tuned kernels as if they were measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from flashsmith.cli import app
from flashsmith.configs import (
    DType,
    ForwardKernelConfig,
    get_autotuning_kernel_configs,
    get_sm90_autotuning_kernel_configs,
)
from flashsmith.configs.registry import FORWARD
from flashsmith.jit import kernel_source_stamp
from flashsmith.selection.choose import choose, forget_tables
from flashsmith.selection.entries import Entry, Measured
from flashsmith.selection.tables import Table, user_table_path
from support.workloads import square

A100, H100, H200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200"
LARGE, SMALL = (
    next(cfg for cfg in get_autotuning_kernel_configs([DType.FP16]) if (cfg.B_r, cfg.B_c) == tile)
    for tile in ((128, 32), (64, 32))
)
SM90 = get_sm90_autotuning_kernel_configs([DType.FP16], [128])[0]
SM90_BF16 = next(
    cfg for cfg in get_sm90_autotuning_kernel_configs([DType.BF16], [128]) if cfg.stale_maximum
)
STAMP = {"gpu": H200, "driver_version": "580.1", "date": "d", **kernel_source_stamp()}


def make_entry(
    configs: Sequence[ForwardKernelConfig] = (LARGE, SMALL),
    seq_len: int = 1024,
    mask: str = "full",
) -> Entry:
    """Returns an entry in which each configuration takes 1 ms longer than the one before."""
    cfg = configs[0]
    ranked = [Measured(c, ms, ms - 0.1, ms + 0.1, 100 / ms) for ms, c in enumerate(configs, 1)]
    return Entry(
        square(cfg.dtype, cfg.d_head, mask, 4, 16, seq_len),
        tried=40, excluded={}, heuristic_ratio=1.5, ranked=tuple(ranked),
    )  # fmt: skip


def write_user_table(*entries: Entry, gpu: str = H200, **stamp: str) -> Path:
    path = user_table_path(gpu)
    Table.of(FORWARD, STAMP | {"gpu": gpu} | stamp, entries).write(path)
    forget_tables()
    return path


def chosen(
    seq_len: int = 1024, dtype: DType = DType.FP16, gpu: str | None = H200, **more: Any
) -> Any:
    mask = "causal" if more.get("causal") else "full"
    return choose(square(dtype, more.get("d_head", 128), mask, 4, 16, seq_len), gpu)


def explained(*args: object) -> str:
    result = CliRunner().invoke(app, ["tune", "--explain", *map(str, args)])
    assert result.exit_code == 0, result.output
    return re.sub(" +", " ", result.stdout)
