"""The GPU's clock and power while it works."""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from flashsmith.lab.bench.stamp import gpu_id

_PERIOD_SECONDS = 0.05
_RUNS_AT_ONCE = 20
_NVML = "libnvidia-ml.so.1"  # comes with the driver
_NVML_CLOCK_SM = 1


class Sample(NamedTuple):
    sm_clock_mhz: float | None = None
    power_w: float | None = None


class Sustained(NamedTuple):
    """The rate of a function that runs without a pause, under the GPU's power limit."""

    ms: float  # of a call
    sample: Sample


def sustain(run: Callable[[], object], seconds: float = 1.0) -> Sustained:
    with GpuMonitor() as monitor:
        runs, start = 0, time.monotonic()
        while time.monotonic() - start < seconds:
            for _ in range(_RUNS_AT_ONCE):
                run()
            torch.cuda.synchronize()
            runs += _RUNS_AT_ONCE
        elapsed = time.monotonic() - start
        return Sustained(1e3 * elapsed / runs, monitor.since(start + seconds / 2))


class GpuMonitor:
    """A context manager that samples the GPU's clock and power in a thread.

    Args:
        read: Takes a sample. By default it asks NVML; without NVML samples are empty.
    """

    def __init__(self, read: Callable[[], Sample] | None = None) -> None:
        self._read = read or _open_nvml(gpu_id())
        self._samples: list[tuple[float, Sample]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuMonitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def since(self, start: float) -> Sample:
        """Returns the medians of the samples since ``start``, a time.monotonic(); the last sample
        if there is none since then."""
        samples = list(self._samples)
        seen = [sample for at, sample in samples if at >= start] or [s for _, s in samples[-1:]]
        return Sample(
            _median([s.sm_clock_mhz for s in seen if s.sm_clock_mhz is not None]),
            _median([s.power_w for s in seen if s.power_w is not None]),
        )

    def _watch(self) -> None:
        while not self._stop.wait(_PERIOD_SECONDS):
            self._samples.append((time.monotonic(), self._read()))


def _open_nvml(gpu: str) -> Callable[[], Sample]:
    """Returns a function that samples the GPU with this UUID."""
    device = ctypes.c_void_p()
    try:
        nvml = ctypes.CDLL(_NVML)
    except OSError:
        return Sample
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(gpu.encode(), ctypes.byref(device)):
        return Sample

    def read() -> Sample:
        clock, milliwatts = ctypes.c_uint(), ctypes.c_uint()
        no_clock = nvml.nvmlDeviceGetClockInfo(device, _NVML_CLOCK_SM, ctypes.byref(clock))
        no_power = nvml.nvmlDeviceGetPowerUsage(device, ctypes.byref(milliwatts))
        return Sample(
            None if no_clock else float(clock.value),
            None if no_power else milliwatts.value / 1e3,
        )

    return read


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
