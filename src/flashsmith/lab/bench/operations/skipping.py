"""The kernels that are chosen, made to leave out keys that no row of a warpgroup sees."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch

from flashsmith.configs.base import KernelConfig
from flashsmith.configs.operation import Operation
from flashsmith.selection.choose import choose_for
from flashsmith.selection.select import gpu_of

C = TypeVar("C", bound=KernelConfig)


def choose_skipping(operation: Operation[Any, C], workload: Any, device: torch.device) -> C | None:
    """Returns the choice for a workload with skip_unseen; None if it has no such kernel."""
    chosen = choose_for(operation, workload, *gpu_of(device)).config
    if "skip_unseen" not in {field.name for field in fields(chosen)}:
        return None
    skipping = replace(chosen, skip_unseen=True)
    return None if skipping.problems(skipping.minimum_gpu) else skipping
