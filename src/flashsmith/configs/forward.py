"""The configuration of a forward kernel of the sm80 family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flashsmith.configs.dtype import DType
from flashsmith.configs.family import ELEMENT_BYTES, ForwardConfigBase
from flashsmith.configs.features import Feature, flag
from flashsmith.configs.gpu import WARP_SIZE
from flashsmith.configs.legality import find_problems

_LOAD_TILES = ("Q_mma_load_K_tiles", "K_mma_load_K_tiles", "V_mma_load_K_tiles")


@dataclass(frozen=True, order=True)
class FlashForwardKernelConfig(ForwardConfigBase):
    """How a kernel works: one point of the configuration space, the C++ struct of the same name.

    Same fields in the same order as the C++ struct, and the same order between configurations.

    dtype: element type of Q, K, V and O; sums and statistics are FP32.
    d_head: head dimension, 64 or 128.
    B_r: rows of Q that a thread block works on.
    B_c: rows of K and V that are in shared memory at a time.
    n_warps: warps of a thread block, which share the rows of Q.
    async_copy: global to shared memory with cp.async, else through registers.
    eager_load_blocks: load the next K and V block as early as their buffer is free.
    swizzled: permute the 16-byte chunks of a shared-memory row against bank conflicts.
    Q_mma_load_K_tiles, K_mma_load_K_tiles, V_mma_load_K_tiles: fragments along the mma's K
        dimension that are loaded from shared memory at a time; 0: the operand's whole block is
        held in registers.
    mma_double_buffer_loads: load the next fragments before the current mma.
    optimized_softmax: the softmax scale is folded into the exponential, row sums are reduced once
        at the end.

    Raises:
        TypeError: a field has the wrong type; names the field.
        ValueError: a field is negative, or zero where that means nothing. What is well formed may
            still be a point that no kernel supports: `problems()` says so.
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

    family: ClassVar[int] = 0
    minimum_gpu: ClassVar[str] = "sm_80"
    header_folder: ClassVar[str] = "ampere"
    kernel_function: ClassVar[str] = "flash_forward_kernel"
    static_configuration: ClassVar[str] = "StaticForwardKernelConfig"
    kernel_arguments: ClassVar[str] = "ForwardKernelArgs"
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
        return find_problems(self, gpu)

    @property
    def threads_per_block(self) -> int:
        return self.n_warps * WARP_SIZE

    @property
    def shared_memory_bytes(self) -> int:
        """One tile each of Q, K and V; O leaves through Q's."""
        return (self.B_r + 2 * self.B_c) * self.d_head * ELEMENT_BYTES
