"""The GPU's clock and power while it works."""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from typing import NamedTuple

from flashsmith.bench.stamp import gpu_id

_PERIOD_MS = 50
_QUERY = "clocks.sm,power.draw"


class Sample(NamedTuple):
    sm_clock_mhz: float | None
    power_w: float | None


class GpuMonitor:
    """Asks nvidia-smi in the background; a context manager. Without nvidia-smi it knows nothing."""

    def __init__(self, command: list[str] | None = None) -> None:
        self._command = command
        self._samples: list[tuple[float, Sample]] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> GpuMonitor:
        try:
            self._process = subprocess.Popen(
                self._command or _nvidia_smi(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError:
            return self
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def since(self, start: float) -> Sample:
        """The medians of what was seen from ``start``, a time.monotonic(), until now."""
        seen = [sample for at, sample in list(self._samples) if at >= start]
        return Sample(*(_median([s[i] for s in seen if s[i] is not None]) for i in range(2)))  # type: ignore[misc]

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            clock, _, power = line.partition(",")
            self._samples.append((time.monotonic(), Sample(_number(clock), _number(power))))


def _nvidia_smi() -> list[str]:
    formats = ["--format=csv,noheader,nounits", f"--loop-ms={_PERIOD_MS}"]
    return ["nvidia-smi", f"--query-gpu={_QUERY}", f"--id={gpu_id()}", *formats]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
