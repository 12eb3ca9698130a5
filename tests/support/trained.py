"""Builds the forward and backward kernels of the same calls."""

from __future__ import annotations

import torch

from flashsmith.configs import KernelConfig, KernelId, Variant
from flashsmith.configs.sm80.backward_space import heuristic
from flashsmith.dtype import DType
from flashsmith.jit import Target
from flashsmith.runtime import load_kernels
from flashsmith.selection.select import select_config


def build_for_training(*variants: str) -> None:
    """Builds the emulated kernels for calls of short float16 heads, with one link."""
    heads = torch.empty(1, 9, 2, 64, dtype=torch.float16)
    configs: tuple[KernelConfig, ...] = (select_config(heads), heuristic(DType.FP16, 64))
    meanings = [Variant.from_name(name) for name in variants]
    load_kernels([KernelId(c, meaning) for c in configs for meaning in meanings], Target.emulator())
