"""The number of a kernel's blocks that an SM holds, and the resources that limit it."""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.gpus import REGISTERS_PER_SM, WARP_SIZE, get_gpu_architecture

# The allocation granularity since compute capability 8.0, as in NVIDIA's occupancy calculator.
SCHEDULERS_PER_SM = 4  # each has a quarter of the registers, and of the warps
_REGISTER_UNIT = 256  # registers of a warp
_SHARED_UNIT = 128  # bytes of a block
_RESERVED_SHARED_BYTES = 1024  # the driver's part of each block

# The maximum numbers of resident (warps, blocks) of an SM: CUDA programming guide, "Technical
# Specifications per Compute Capability"; CCCL's cuda::arch_traits has the same figures.
_RESIDENT = {
    (8, 0): (64, 32),
    (8, 6): (48, 16),
    (8, 7): (48, 16),
    (8, 9): (48, 24),
    (9, 0): (64, 32),
    (10, 0): (64, 32),
    (10, 3): (64, 32),
    (11, 0): (48, 24),
    (12, 0): (48, 24),
    (12, 1): (48, 24),
}


@dataclass(frozen=True)
class Occupancy:
    """The number of blocks that each resource of an SM allows."""

    by_resource: dict[str, int]
    warps_per_block: int
    max_warps: int

    @property
    def blocks(self) -> int:
        return min(self.by_resource.values())

    @property
    def limits(self) -> list[str]:
        """The resources that limit the number of blocks."""
        return [name for name, blocks in self.by_resource.items() if blocks == self.blocks]

    @property
    def warps(self) -> int:
        return self.blocks * self.warps_per_block

    @property
    def share(self) -> float:
        """The number of resident warps over the SM's maximum."""
        return self.warps / self.max_warps


def compute_occupancy(
    arch: str, registers: int, threads_per_block: int, shared_bytes: int
) -> Occupancy:
    """Returns the occupancy on ``arch`` ("sm_90a").

    Args:
        registers: Registers of a thread, as ptxas reports them.
        shared_bytes: Static and dynamic shared memory of a block, without the driver's part.

    Raises:
        ValueError: The architecture is not known, or an argument is not positive.
    """
    if min(registers, threads_per_block) < 1 or shared_bytes < 0:
        raise ValueError(
            f"registers is {registers}, threads_per_block {threads_per_block}, shared_bytes "
            f"{shared_bytes}; expected at least 1, 1 and 0"
        )
    gpu = get_gpu_architecture(arch)
    if gpu.compute_capability not in _RESIDENT:
        raise ValueError(f"arch is {arch!r}; occupancy is known from sm_80 on")
    max_warps, max_blocks = _RESIDENT[gpu.compute_capability]
    warps = _round_up(threads_per_block, WARP_SIZE) // WARP_SIZE
    registers_of_warp = _round_up(registers * WARP_SIZE, _REGISTER_UNIT)
    # A scheduler holds whole warps. The result can be 0 blocks, where a launch is refused.
    warps_of_scheduler = REGISTERS_PER_SM // SCHEDULERS_PER_SM // registers_of_warp
    shared_of_block = _round_up(shared_bytes + _RESERVED_SHARED_BYTES, _SHARED_UNIT)
    return Occupancy(
        {
            "registers": warps_of_scheduler * SCHEDULERS_PER_SM // warps,
            "shared memory": gpu.shared_memory_per_sm_bytes // shared_of_block,
            "threads": max_warps // warps,
            "block slots": max_blocks,
        },
        warps,
        max_warps,
    )


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
