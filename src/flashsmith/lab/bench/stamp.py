"""The stamp of a measurement: GPU, driver, versions and hashes of sources."""

from __future__ import annotations

import datetime
import platform
import subprocess
from collections.abc import Mapping

import torch

from flashsmith.jit import PACKAGE_SOURCES, kernel_source_stamp, source_hash
from flashsmith.version import __version__

_GPU_FIELDS = ("driver_version", "clocks.sm", "clocks.max.sm", "power.draw", "power.limit")
# These fields may differ between two runs that can be compared.
_VOLATILE = ("date", "clocks.sm", "power.draw")


def environment_stamp(device: str = "cuda") -> dict[str, str]:
    """Returns the GPU, its clocks, power and driver, and the versions of the software.

    Args:
        device: cuda; or cpu for the emulator, whose numbers depend on no machine.

    Raises:
        RuntimeError: The device is cuda, but there is no GPU.
    """
    stamp = {
        "date": datetime.date.today().isoformat(),
        "flashsmith": __version__,
        "sources": source_hash(PACKAGE_SOURCES.csrc)[:16],
        **kernel_source_stamp(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if device == "cpu":
        return {**stamp, "gpu": "none (emulator)"}
    stamp["gpu"] = torch.cuda.get_device_name()
    stamp["cuda"] = str(torch.version.cuda)
    stamp["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    fields = f"--query-gpu={','.join(_GPU_FIELDS)}"
    query = ["nvidia-smi", fields, "--format=csv,noheader", f"--id={gpu_id()}"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return stamp  # a container may lack nvidia-smi
    values = map(str.strip, answer.stdout.split(","))
    return stamp | dict(zip(_GPU_FIELDS, values, strict=False))


def differences(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Returns, in words, the differences of two stamps that forbid one table for their numbers."""
    return [
        f"{name} was {before.get(name, 'not recorded')} and is {now.get(name, 'not known')}"
        for name in sorted({*before, *now} - {*_VOLATILE})
        if before.get(name) != now.get(name)
    ]


def gpu_id() -> str:
    """Returns the UUID of torch's current GPU, because nvidia-smi may number GPUs otherwise."""
    return f"GPU-{torch.cuda.get_device_properties().uuid}"
