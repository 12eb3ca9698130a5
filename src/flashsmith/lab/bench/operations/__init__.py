"""The operations that cases name, in one list: benchmarks can measure no others, and each operation
names its peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashsmith.lab.bench.operations.backward import BACKWARD_BENCH, STEP_BENCH
from flashsmith.lab.bench.operations.base import OperationBench
from flashsmith.lab.bench.operations.decode import DECODE_BENCH
from flashsmith.lab.bench.operations.forward import FORWARD_BENCH
from flashsmith.lab.bench.operations.forward_kernels import (
    FORWARD_KERNELS,
    FORWARD_KERNELS_BENCH,
)
from flashsmith.lab.bench.operations.fp8 import FP8_FORWARD_BENCH

BENCHES: Mapping[str, OperationBench[Any]] = {
    "forward": FORWARD_BENCH,
    FORWARD_KERNELS: FORWARD_KERNELS_BENCH,
    "backward": BACKWARD_BENCH,
    "training step": STEP_BENCH,
    "decode": DECODE_BENCH,
    "forward in 8 bits": FP8_FORWARD_BENCH,
}
