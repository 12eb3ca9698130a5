"""NVIDIA's GPUs: the budgets of each architecture, and the models that have it.

Legality is checked against the budgets. Every layer may use this table.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

WARP_SIZE = 32
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255
REGISTERS_PER_SM = 65536
WARPGROUP_SIZE = 128


@dataclass(frozen=True)
class GpuArchitecture:
    """One compute capability. A block's shared memory is the max after opting in to more than 48
    KiB.

    num_sms: The SMs of its largest common GPU.
    """

    compute_capability: tuple[int, int]
    shared_memory_per_sm_bytes: int
    max_shared_memory_per_block_bytes: int
    num_sms: int

    @property
    def name(self) -> str:
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"

    def blocks_by_shared_memory(self, of_block_bytes: int) -> int:
        """Returns how many blocks fit in an SM's shared memory, with the driver's reserve for
        each."""
        reserved = self.shared_memory_per_sm_bytes - self.max_shared_memory_per_block_bytes
        return self.shared_memory_per_sm_bytes // (of_block_bytes + reserved)


def _architecture(
    major: int, minor: int, shared_memory_per_sm_kib: int, num_sms: int
) -> GpuArchitecture:
    # Since compute capability 8.0 the driver reserves 1 KiB of shared memory for each block.
    reserved_kib = 1 if major >= 8 else 0
    return GpuArchitecture(
        (major, minor),
        shared_memory_per_sm_kib * 1024,
        (shared_memory_per_sm_kib - reserved_kib) * 1024,
        num_sms,
    )


# The source is the CUDA programming guide, "Technical Specifications per Compute Capability";
# CCCL's cuda::arch_traits has the same figures. 7.5 is listed so that it is refused with a reason.
GPU_ARCHITECTURES = (
    _architecture(7, 5, 64, 40),
    _architecture(8, 0, 164, 108),
    _architecture(8, 6, 100, 84),
    _architecture(8, 7, 164, 16),
    _architecture(8, 9, 100, 142),
    _architecture(9, 0, 228, 132),
    _architecture(10, 0, 228, 148),
    _architecture(10, 3, 228, 148),
    _architecture(11, 0, 228, 20),
    _architecture(12, 0, 100, 170),
    _architecture(12, 1, 100, 48),
)


# The source is NVIDIA's list, https://developer.nvidia.com/cuda-gpus. A GPU is a model if its name
# has the model's words in this order: "NVIDIA A100-SXM4-80GB" has A100. The first match counts.
_MODELS: dict[tuple[int, int], tuple[str, ...]] = {
    (9, 0): ("H100", "H200", "H800", "H20", "GH200"),
    (10, 0): ("B100", "B200", "GB200"),
    (10, 3): ("B300", "GB300"),
    (11, 0): ("Thor",),
    (12, 0): ("RTX 5050", "RTX 5060", "RTX 5070", "RTX 5080", "RTX 5090", "RTX PRO"),
    (12, 1): ("GB10",),
    (8, 0): ("A100", "A800", "A30"),
    (8, 6): (
        *("A2", "A10", "A10G", "A16", "A40", "RTX 3050", "RTX 3060", "RTX 3070", "RTX 3080"),
        *("RTX 3090", "RTX A2000", "RTX A3000", "RTX A4000", "RTX A4500", "RTX A5000"),
        *("RTX A5500", "RTX A6000"),
    ),
    (8, 7): ("Orin",),
    (8, 9): (
        *("L4", "L20", "L40", "L40S", "RTX 4050", "RTX 4060", "RTX 4070", "RTX 4080", "RTX 4090"),
        *("RTX 2000 Ada", "RTX 4000 Ada", "RTX 4500 Ada", "RTX 5000 Ada", "RTX 5880 Ada"),
        "RTX 6000 Ada",
    ),
    (7, 5): ("T4", "RTX 2060", "RTX 2070", "RTX 2080", "Quadro RTX", "TITAN RTX"),
}

# The SMs of models that have far fewer than the largest GPU of their architecture.
_NUM_SMS = {
    **{"H100 PCIe": 114, "H20": 78, "A30": 56},
    **{"A2": 10, "A16": 10, "RTX 3050": 20, "RTX 3060": 28, "RTX 3070": 46, "RTX 3080": 68},
    **{"RTX A2000": 26, "RTX A3000": 32, "RTX A4000": 48, "RTX A4500": 56, "RTX A5000": 64},
    **{"L4": 58, "L20": 92, "RTX 4050": 20, "RTX 4060": 24, "RTX 4070": 46, "RTX 4080": 76},
    **{"RTX 2000 Ada": 22, "RTX 4000 Ada": 48, "RTX 4500 Ada": 60, "RTX 5000 Ada": 100},
    **{"RTX 5050": 20, "RTX 5060": 30, "RTX 5070": 48, "RTX 5080": 84},
}
_USUAL_NUM_SMS = 132  # of an unknown GPU

GPU_MODELS = tuple(model for models in _MODELS.values() for model in models)


@functools.cache  # selection asks for each new shape
def get_gpu_architecture(name: str) -> GpuArchitecture:
    """Returns the architecture of a name ("sm_80", "sm_90a", whose suffix changes no budget, or
    "8.0") or of a GPU's name in any spelling ("NVIDIA H200", "h200", "rtx-4090").

    Raises:
        ValueError: neither is known; the message lists both.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?|(\d+)\.(\d)", name)
    capability: tuple[int, ...] | None
    if match:  # such a name is no GPU's
        capability = tuple(int(digits) for digits in match.groups() if digits)
    else:
        capability = find_compute_capability(name)
    if found := find_architecture(capability):
        return found
    valid = ", ".join(gpu.name for gpu in GPU_ARCHITECTURES)
    models = ", ".join(GPU_MODELS)
    raise ValueError(f"gpu {name!r} is not known; supported: {valid}, and names with {models}")


def find_architecture(capability: tuple[int, ...] | None) -> GpuArchitecture | None:
    """Returns the architecture of a compute capability, or None if it is not in the list."""
    found = (gpu for gpu in GPU_ARCHITECTURES if gpu.compute_capability == capability)
    return next(found, None)


def find_compute_capability(gpu: str) -> tuple[int, int] | None:
    """Returns the compute capability of a GPU by name, in any spelling: `NVIDIA H200`, `rtx4090`.

    The result is None if the list has no model of this name.
    """
    for capability, models in _MODELS.items():
        if any(_is_model(gpu, model) for model in models):
            return capability
    return None


@functools.cache
def count_sms(gpu: str) -> int:
    """Returns about how many SMs the GPU, or architecture, of this name has.

    The count depends on the name alone, so that a choice can be explained without the GPU; models
    of one name whose counts differ by a few percent share one count.
    """
    for model, count in _NUM_SMS.items():
        if _is_model(gpu, model):
            return count
    try:
        return get_gpu_architecture(gpu).num_sms
    except ValueError:
        return _USUAL_NUM_SMS


def _is_model(gpu: str, model: str) -> bool:
    """Returns whether a GPU's name has a model's whole words; no letters or digits may stand
    between them."""
    name, words = gpu.lower(), model.lower().split()
    if not all(word in name for word in words):  # to compile a pattern takes far longer
        return False
    pattern = r"[^a-z0-9]*".join(words)
    return re.search(rf"(?<![a-z0-9]){pattern}(?![a-z0-9])", name) is not None
