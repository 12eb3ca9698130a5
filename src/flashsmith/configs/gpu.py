"""What an NVIDIA GPU architecture gives a kernel: the budgets that legality is checked against."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flashsmith.configs.gpu_models import GPU_MODELS, find_compute_capability

WARP_SIZE = 32
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255


@dataclass(frozen=True)
class GpuArchitecture:
    """One compute capability. A block has its shared memory after opting in to more than 48 KiB."""

    compute_capability: tuple[int, int]
    shared_memory_per_sm_bytes: int
    max_shared_memory_per_block_bytes: int

    @property
    def name(self) -> str:
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"


def _architecture(major: int, minor: int, shared_memory_per_sm_kib: int) -> GpuArchitecture:
    # Since compute capability 8.0 the driver keeps 1 KiB of each block's shared memory.
    reserved_kib = 1 if major >= 8 else 0
    return GpuArchitecture(
        (major, minor),
        shared_memory_per_sm_kib * 1024,
        (shared_memory_per_sm_kib - reserved_kib) * 1024,
    )


# CUDA programming guide, "Technical Specifications per Compute Capability"; the same figures are
# in CCCL's cuda::arch_traits. 7.5 is here to be refused with a reason.
GPU_ARCHITECTURES = (
    _architecture(7, 5, 64),
    _architecture(8, 0, 164),
    _architecture(8, 6, 100),
    _architecture(8, 7, 164),
    _architecture(8, 9, 100),
    _architecture(9, 0, 228),
    _architecture(10, 0, 228),
    _architecture(10, 3, 228),
    _architecture(11, 0, 228),
    _architecture(12, 0, 100),
    _architecture(12, 1, 100),
)


HOPPER_COMPUTE_CAPABILITY = (9, 0)


def is_hopper_arch(name: str) -> bool:
    """Whether the architecture, or GPU, called `name` is one that the sm90 family is for."""
    return get_gpu_architecture(name).compute_capability == HOPPER_COMPUTE_CAPABILITY


def get_gpu_architecture(name: str) -> GpuArchitecture:
    """The architecture called `name`: "sm_80", "sm_90a" (the suffix changes no budget) or "8.0"; or
    that of the GPU of this name, in any spelling: "NVIDIA H200", "h200", "rtx-4090".

    Raises:
        ValueError: neither is known; the message lists both.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?|(\d+)\.(\d)", name)
    capability: tuple[int, ...] | None = find_compute_capability(name)
    if match:
        capability = tuple(int(digits) for digits in match.groups() if digits)
    for gpu in GPU_ARCHITECTURES:
        if gpu.compute_capability == capability:
            return gpu
    valid = ", ".join(gpu.name for gpu in GPU_ARCHITECTURES)
    models = ", ".join(GPU_MODELS)
    raise ValueError(f"gpu {name!r} is not known; supported: {valid}, and names with {models}")
