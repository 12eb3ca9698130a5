"""Chooses the device that kernels run on: a GPU, or the emulator."""

from __future__ import annotations

import torch

from flashsmith.configs.sm80.forward import MIN_COMPUTE_CAPABILITY
from flashsmith.errors import DeviceError


def choose_device(wanted: str | None) -> tuple[str, str]:
    """Returns the device, `cuda` or `cpu` (the emulator), and the reason for it.

    Raises:
        DeviceError: cuda is wanted, but torch finds no GPU that the kernels run on.
        ValueError: ``wanted`` is neither.
    """
    if wanted not in (None, "cuda", "cpu"):
        raise ValueError(f"--device is {wanted!r}; supported are cuda and cpu (the emulator)")
    if wanted == "cpu":
        return "cpu", "as asked"
    why_not = _why_no_gpu()
    if not why_not:
        return "cuda", torch.cuda.get_device_name()
    if wanted == "cuda":
        raise DeviceError(f"--device cuda: {why_not}; --device cpu runs the emulator")
    return "cpu", why_not


def _why_no_gpu() -> str:
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    if torch.cuda.get_device_capability() < MIN_COMPUTE_CAPABILITY:
        return f"{torch.cuda.get_device_name()} is older than compute capability 8.0"
    return ""


def where_it_is(device: str) -> str:
    """Returns the name of a device for messages."""
    return "the GPU" if device == "cuda" else "the emulator"
