"""The build target that serves the tensors of a device."""

from __future__ import annotations

import functools

import torch

from flashsmith.errors import DeviceError
from flashsmith.jit import Target


def target_of(device: torch.device) -> Target:
    """Returns the target whose kernels can use tensors on ``device``.

    Raises:
        DeviceError: The GPU is older than compute capability 8.0.
        ValueError: The device is neither a CPU nor an NVIDIA GPU.
    """
    if device.type == "cpu":
        return Target.emulator()
    if device.type != "cuda" or torch.version.cuda is None:
        raise ValueError(f"device is {device}; supported are cuda (NVIDIA) and cpu (emulator)")
    return _cuda_target(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _cuda_target(index: int) -> Target:
    major, minor = torch.cuda.get_device_capability(index)
    if major < 8:
        name = torch.cuda.get_device_name(index)
        raise DeviceError(
            f"GPU {index} ({name}) has compute capability {major}.{minor}; "
            "the kernels need 8.0 or newer (Ampere)"
        )
    return Target.cuda(f"sm_{major}{minor}{'a' if major >= 9 else ''}")


def gpu_answers() -> bool:
    """Returns False after an illegal address or a similar error: nothing runs in this process
    then."""
    try:
        torch.cuda.synchronize()
    except Exception:
        return False
    return True
