"""The operations that cases are of. This list is the only one: a benchmark measures what is here,
and an operation's peers are those that it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashsmith.lab.bench.operations.backward import BACKWARD
from flashsmith.lab.bench.operations.base import Operation

OPERATIONS: Mapping[str, Operation[Any]] = {"backward": BACKWARD}
