"""Which configurations a kernel can be built and run for, and why not the others.

Each rule has its twin: a static_assert with a sentence in the C++ templates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flashsmith.configs.gpu import (
    MAX_REGISTERS_PER_THREAD,
    MAX_THREADS_PER_BLOCK,
    WARP_SIZE,
    GpuArchitecture,
    get_gpu_architecture,
)

if TYPE_CHECKING:
    from flashsmith.configs.forward import FlashForwardKernelConfig

MMA_M = 16  # mma.sync.m16n8k16: rows of Q in a fragment
MMA_K = 16  # elements of a fragment along the dimension that is summed over
MIN_COMPUTE_CAPABILITY = (8, 0)  # cp.async, ldmatrix and the BF16 mma

# FP32 accumulators S and O that a thread may hold; the rest are for addresses and fragments.
MAX_ACCUMULATOR_REGISTERS = 224

SUPPORTED_VALUES = {
    "d_head": (64, 128),
    "B_r": (64, 128),
    "B_c": (32, 64, 128),
    "n_warps": (4, 8),
}


def find_problems(config: FlashForwardKernelConfig, gpu: str) -> list[str]:
    """The reasons, one sentence each, why `config` cannot be built or run on `gpu`; none if it can.

    Raises:
        ValueError: `gpu` is not a known architecture.
    """
    architecture = get_gpu_architecture(gpu)
    return [
        *_value_problems(config),
        *_row_problems(config),
        *_load_tile_problems(config),
        *_register_problems(config),
        *_gpu_problems(config, architecture),
    ]


def _value_problems(config: FlashForwardKernelConfig) -> Iterator[str]:
    for name, supported in SUPPORTED_VALUES.items():
        value = getattr(config, name)
        if value not in supported:
            yield f"{name} is {value}; supported are {', '.join(map(str, supported))}."


def _row_problems(config: FlashForwardKernelConfig) -> Iterator[str]:
    if config.B_r % (MMA_M * config.n_warps) != 0:
        yield (
            f"B_r is {config.B_r}, which {config.n_warps} warps cannot share in multiples of an "
            f"mma's {MMA_M} rows; B_r must be a multiple of {MMA_M * config.n_warps}."
        )


def _load_tile_problems(config: FlashForwardKernelConfig) -> Iterator[str]:
    # Q K^T sums over d_head, P V over the rows of V.
    for operand, summed in (("Q", "d_head"), ("K", "d_head"), ("V", "B_c")):
        name = f"{operand}_mma_load_K_tiles"
        tiles = getattr(config, name)
        fragments = getattr(config, summed) // MMA_K
        if tiles == 0:
            continue
        if tiles == 1 or tiles & (tiles - 1) != 0:
            yield f"{name} is {tiles}; it must be 0 or a power of two that is at least 2."
        elif tiles > fragments:
            yield (
                f"{name} is {tiles}, but {operand} has only {fragments} fragments "
                f"({summed} {getattr(config, summed)} / {MMA_K})."
            )


def _register_problems(config: FlashForwardKernelConfig) -> Iterator[str]:
    rows_per_warp = config.B_r // config.n_warps
    S_registers = rows_per_warp * config.B_c // WARP_SIZE
    O_registers = rows_per_warp * config.d_head // WARP_SIZE
    if S_registers + O_registers > MAX_ACCUMULATOR_REGISTERS:
        yield (
            f"The accumulators take {S_registers} (S) + {O_registers} (O) registers per thread; "
            f"at most {MAX_ACCUMULATOR_REGISTERS} of {MAX_REGISTERS_PER_THREAD} leave room for "
            "addresses and fragments."
        )


def _gpu_problems(config: FlashForwardKernelConfig, gpu: GpuArchitecture) -> Iterator[str]:
    if gpu.compute_capability < MIN_COMPUTE_CAPABILITY:
        yield (
            f"{gpu.name} has compute capability {'.'.join(map(str, gpu.compute_capability))}; "
            f"{'.'.join(map(str, MIN_COMPUTE_CAPABILITY))} or newer is needed."
        )
    if config.threads_per_block > MAX_THREADS_PER_BLOCK:
        yield (
            f"n_warps is {config.n_warps}, which makes {config.threads_per_block} threads per "
            f"block; at most {MAX_THREADS_PER_BLOCK} are possible."
        )
    if config.shared_memory_bytes > gpu.max_shared_memory_per_block_bytes:
        yield (
            f"The tiles of Q, K and V take {config.shared_memory_bytes} bytes of shared memory; a "
            f"block on {gpu.name} has at most {gpu.max_shared_memory_per_block_bytes}."
        )
