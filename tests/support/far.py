"""Memory that is reserved but never touched, apart from the pages that hold elements."""

from __future__ import annotations

import mmap

import torch

MAP_NORESERVE = 0x4000  # of Linux: no memory is set aside


def untouched(elements: int, dtype: torch.dtype) -> torch.Tensor:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, elements * dtype.itemsize, flags=flags), dtype=dtype)
