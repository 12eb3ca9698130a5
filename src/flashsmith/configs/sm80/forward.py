"""Forward kernels of the sm80 family: their configuration, and which can be built.

Each rule of legality has a twin in the C++ templates: a static_assert with a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from flashsmith.configs.base import ForwardKernelConfig
from flashsmith.configs.features import Feature, flag
from flashsmith.configs.legality import too_little_shared_memory, too_old_a_gpu, unsupported_values
from flashsmith.configs.variant import Variant
from flashsmith.dtype import ELEMENT_BYTES, DType
from flashsmith.gpus import (
    MAX_REGISTERS_PER_THREAD,
    MAX_THREADS_PER_BLOCK,
    REGISTERS_PER_SM,
    WARP_SIZE,
    WARPGROUP_SIZE,
    GpuArchitecture,
    get_gpu_architecture,
)

MMA_M = 16  # mma.sync.m16n8k16: rows of Q in a fragment
MMA_K = 16  # elements of a fragment along the summed dimension
CHUNK_BYTES = 16  # bytes that a thread copies at a time
MAX_CHUNKS_SIDE_BY_SIDE = 16  # max chunks of one row that threads copy at a time
MIN_COMPUTE_CAPABILITY = (8, 0)  # cp.async, ldmatrix and the BF16 mma

# Max FP32 accumulators of S and O in a thread; the rest are for addresses and fragments.
MAX_ACCUMULATOR_REGISTERS = 224
_OTHER_REGISTERS = 72
_COST_OF_SINGLE_ROWS = 1.1

SUPPORTED_VALUES = {
    "d_head": (64, 96, 128, 192, 256),
    "B_r": (64, 128),
    "B_c": (32, 64, 128),
    "n_warps": (4, 8),
}

_LOAD_TILES = ("Q_mma_load_K_tiles", "K_mma_load_K_tiles", "V_mma_load_K_tiles")


@dataclass(frozen=True, order=True)
class FlashForwardKernelConfig(ForwardKernelConfig):
    """A forward kernel's configuration: one point of the space, with the fields of the C++ struct
    of the same name.

    A thread block iterates with B_r rows of Q over K and V, in blocks of B_c rows.

    dtype: element type of Q, K, V and O; sums and statistics are FP32.
    d_head: head dimension, 64, 96, 128, 192 or 256.
    B_r: rows of Q that a thread block works on.
    B_c: rows of K and V in shared memory at a time.
    n_warps: warps of a thread block, which share the rows of Q. Each reads all of K and V from
        shared memory.
    async_copy: copy from global to shared memory with cp.async, which bypasses registers and does
        not block the warp; else by a load to registers and a store, for which the warp waits.
    eager_load_blocks: load the next block of K and V as soon as its buffer is free, else right
        before its use. It needs async_copy to be useful: otherwise an early load would hold the
        block in registers.
    swizzled: permute the 16-byte chunks of a shared-memory row to avoid bank conflicts: chunk c of
        row r is at c ^ (r % 8), for d_head 96 at c ^ (r % 8 / 2).
    Q_mma_load_K_tiles, K_mma_load_K_tiles, V_mma_load_K_tiles: fragments (16 elements along the
        summed dimension) that are loaded from shared memory before the mma that use them; 0: all. A
        whole Q stays in registers for the kernel's life.
    mma_double_buffer_loads: load the next group of fragments before the current group's mma.
    optimized_softmax: the softmax scale is folded into the exponential's multiply-add, row sums are
        reduced across lanes once, and O is rescaled only when a row's max has grown by more than
        2^8.

    Raises:
        TypeError: a field has the wrong type; the message names it.
        ValueError: a field is negative, or zero where 0 has no meaning. Other points may still have
            no kernel: see `problems()`.
    """

    dtype: DType
    d_head: int
    B_r: int
    B_c: int
    n_warps: int
    async_copy: bool
    eager_load_blocks: bool
    swizzled: bool
    Q_mma_load_K_tiles: int
    K_mma_load_K_tiles: int
    V_mma_load_K_tiles: int
    mma_double_buffer_loads: bool
    optimized_softmax: bool

    family: ClassVar[str] = "sm80"
    minimum_gpu: ClassVar[str] = "sm_80"
    exact_arch: ClassVar[bool] = False
    tensor_core_rate: ClassVar[float] = 0.6
    kernel_function: ClassVar[str] = "sm80::flash_forward_kernel"
    static_configuration: ClassVar[str] = "sm80::StaticForwardKernelConfig"
    kernel_arguments: ClassVar[str] = "ForwardKernelArgs"
    kernel_header: ClassVar[str] = "flashsmith/flash_attention.cuh"
    kernel_pointer: ClassVar[str] = "forward_kernel_fn"
    markers: ClassVar[frozenset[str]] = frozenset()
    tuple_fields: ClassVar[tuple[str, ...]] = ("dtype", "d_head", "B_r", "B_c", "n_warps")
    feature_table: ClassVar[tuple[Feature, ...]] = (
        flag("async", "async_copy"),
        flag("eager", "eager_load_blocks"),
        flag("swizzled", "swizzled"),
        Feature("load_{Q}_{K}_{V}_tiles", _LOAD_TILES),
        flag("buffer", "mma_double_buffer_loads"),
        flag("opt_softmax", "optimized_softmax"),
    )
    may_be_zero: ClassVar[frozenset[str]] = frozenset(_LOAD_TILES)

    def problems(self, gpu: str = "sm_80") -> list[str]:
        architecture = get_gpu_architecture(gpu)
        return [
            *unsupported_values(self, SUPPORTED_VALUES),
            *_row_problems(self),
            *_copy_problems(self),
            *_load_tile_problems(self),
            *_register_problems(self),
            *_gpu_problems(self, architecture),
        ]

    def adapted_to(self, variant: Variant) -> FlashForwardKernelConfig:
        """Returns, from d_head 192 on, tiles of half the keys that read Q again for every block."""
        if not variant.knows_positions or self.d_head < 192:
            return self
        return replace(self, B_c=32, Q_mma_load_K_tiles=2, V_mma_load_K_tiles=2)

    @property
    def threads_per_block(self) -> int:
        return self.n_warps * WARP_SIZE

    @property
    def shared_memory_parts(self) -> dict[str, int]:
        """Bytes of Q, K and V; O leaves through Q's."""
        row = self.d_head * ELEMENT_BYTES
        return {"Q": self.B_r * row, "K": self.B_c * row, "V": self.B_c * row}

    @property
    def held_registers(self) -> dict[str, int]:
        """Registers for the accumulators O and S, and for a Q that is loaded once."""
        rows = self.B_r // self.n_warps
        return {
            "O": rows * self.d_head // WARP_SIZE,
            "S": rows * self.B_c // WARP_SIZE,
            "Q": 0 if self.Q_mma_load_K_tiles else rows * self.d_head // (2 * WARP_SIZE),
        }

    @property
    def compute_warpgroups(self) -> int:
        return max(1, self.threads_per_block // WARPGROUP_SIZE)

    @property
    def resident_blocks_by_registers(self) -> int:
        held = self.held_registers
        registers = held["O"] + held["S"] + _OTHER_REGISTERS
        registers = min(registers, MAX_REGISTERS_PER_THREAD) * self.threads_per_block
        return max(1, REGISTERS_PER_SM // registers)

    @property
    def cost_of_a_row(self) -> float:
        """The relative cost: a warp with the rows of one mma uses each fragment of K and V once,
        not twice."""
        return _COST_OF_SINGLE_ROWS if self.B_r == MMA_M * self.n_warps else 1.0


def _row_problems(config: FlashForwardKernelConfig) -> Iterator[str]:
    if config.B_r % (MMA_M * config.n_warps) != 0:
        yield (
            f"B_r is {config.B_r}, which {config.n_warps} warps cannot share in multiples of an "
            f"mma's {MMA_M} rows; B_r must be a multiple of {MMA_M * config.n_warps}."
        )


def _copy_problems(config: FlashForwardKernelConfig) -> Iterator[str]:
    # ChunkWalk in csrc/include/flashsmith/sm80/smem_tile.cuh distributes a tile's chunks like this.
    row_chunks = config.d_head * ELEMENT_BYTES // CHUNK_BYTES
    side_by_side = min(row_chunks & -row_chunks, MAX_CHUNKS_SIDE_BY_SIDE)
    rows = config.threads_per_block // max(side_by_side, 1)
    for name in ("B_r", "B_c"):
        if getattr(config, name) % max(rows, 1) != 0:
            yield (
                f"{name} is {getattr(config, name)}, but {config.n_warps} warps copy {rows} rows "
                f"of d_head {config.d_head} at a time; {name} must be a multiple of that."
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
    S_registers, O_registers = config.held_registers["S"], config.held_registers["O"]
    if S_registers + O_registers > MAX_ACCUMULATOR_REGISTERS:
        yield (
            f"The accumulators take {S_registers} (S) + {O_registers} (O) registers per thread; "
            f"at most {MAX_ACCUMULATOR_REGISTERS} of {MAX_REGISTERS_PER_THREAD} leave room for "
            "addresses and fragments."
        )


def _gpu_problems(config: FlashForwardKernelConfig, gpu: GpuArchitecture) -> Iterator[str]:
    yield from too_old_a_gpu(gpu, MIN_COMPUTE_CAPABILITY)
    if config.threads_per_block > MAX_THREADS_PER_BLOCK:
        yield (
            f"n_warps is {config.n_warps}, which makes {config.threads_per_block} threads per "
            f"block; at most {MAX_THREADS_PER_BLOCK} are possible."
        )
    yield from too_little_shared_memory(gpu, config.shared_memory_bytes, "The tiles of Q, K and V")
