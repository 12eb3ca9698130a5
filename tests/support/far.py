"""Reserves memory that is never touched, apart from the pages that hold elements."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch

MAP_NORESERVE = 0x4000  # on Linux, reserves no swap space


def untouched(elements: int, dtype: torch.dtype) -> torch.Tensor:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, elements * dtype.itemsize, flags=flags), dtype=dtype)


def interleaved(
    count: int, shape: Sequence[int], dim: int, far: int, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Returns tensors in one memory, each in the gaps of the others: with stride ``far`` along
    ``dim``, and dense in the other dimensions."""
    strides, step = [1] * len(shape), 1
    for i in reversed(range(len(shape))):
        if i != dim:
            strides[i], step = step, step * shape[i]
    strides[dim] = far
    memory = untouched((shape[dim] - 1) * far + count * step, dtype)
    return [memory[i * step :].as_strided(shape, strides) for i in range(count)]
