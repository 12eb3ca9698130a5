"""The operations that cases are of. This list is the only one: a benchmark measures what is here,
and an operation's peers are those that it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashsmith.lab.bench.operations.backward import BACKWARD, STEP
from flashsmith.lab.bench.operations.base import Operation
from flashsmith.lab.bench.operations.decode import DECODE
from flashsmith.lab.bench.operations.forward import FORWARD
from flashsmith.lab.bench.operations.fp8 import FP8_FORWARD

OPERATIONS: Mapping[str, Operation[Any]] = {
    "forward": FORWARD,
    "backward": BACKWARD,
    "training step": STEP,
    "decode": DECODE,
    "forward in 8 bits": FP8_FORWARD,
}
