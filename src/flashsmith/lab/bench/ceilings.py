"""The GPU's own limits: the rates of a large matrix product and of a copy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from flashsmith.configs import DType
from flashsmith.lab.bench.timer import time_interleaved

_MATMUL_SIZE = 8192
_COPY_BYTES = 2 << 30
_REPEATS = 100  # long enough for the power limit to act


@dataclass(frozen=True)
class Ceilings:
    """The measured limits of a GPU."""

    dtype: str  # of the matrix product
    matmul_tflops: float
    copy_gb_per_s: float  # read and written bytes

    def at(self, intensity: float) -> float:
        """Returns the TFLOP/s that the roofline allows at ``intensity`` FLOP a byte."""
        return min(self.matmul_tflops, intensity * self.copy_gb_per_s / 1e3)


def measure_ceilings(dtype: DType) -> Ceilings:
    """Times cuBLAS on square matrices of 8192, and a copy of 2 GiB within the GPU; medians."""
    n = _MATMUL_SIZE
    a, b = (torch.randn(n, n, device="cuda", dtype=dtype.to_torch_dtype()) for _ in range(2))
    product = torch.empty_like(a)
    source = torch.empty(_COPY_BYTES, device="cuda", dtype=torch.uint8)
    copy = torch.empty_like(source)
    matmul_ms = _median_ms(partial(torch.matmul, a, b, out=product))
    copy_ms = _median_ms(partial(copy.copy_, source))
    return Ceilings(
        str(dtype),
        matmul_tflops=2 * n**3 / matmul_ms / 1e9,
        copy_gb_per_s=2 * _COPY_BYTES / copy_ms / 1e6,
    )


def _median_ms(run: partial[torch.Tensor]) -> float:
    return time_interleaved({"": run}, repeats=_REPEATS)[""].ms
