"""The zeroed memory that some kernels keep a queue in while they run."""

from __future__ import annotations

import functools

import torch


def workspace_for(n_bytes: int, device: torch.device) -> torch.Tensor | None:
    """At least ``n_bytes`` zeros on ``device`` for one launch on its current stream; None for 0.

    A launch leaves its workspace zeroed, and those of one stream run one after the other: each
    stream has one workspace, made once. The launches of a CUDA graph may run on any stream, beside
    anything else: each that is captured gets its own, which the graph zeroes at every replay.
    """
    if n_bytes == 0:
        return None
    # A fault on the emulator leaves its workspace as it was then.
    if device.type != "cuda" or _is_capturing(device):
        return _zeros(n_bytes, device)
    # The stream's number: torch.cuda.current_stream would make an object around it first.
    return _of_stream(n_bytes, device, torch._C._cuda_getCurrentRawStream(device.index))


def _is_capturing(device: torch.device) -> bool:
    # Torch tells it of the current device's stream only.
    if device.index == torch.cuda.current_device():
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


@functools.cache
def _of_stream(n_bytes: int, device: torch.device, stream: int) -> torch.Tensor:
    return _zeros(n_bytes, device)


def _zeros(n_bytes: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(n_bytes, dtype=torch.uint8, device=device)
