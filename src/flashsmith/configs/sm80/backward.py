"""The backward of the sm80 family: its configuration, and which can be built.

Each rule of legality has a twin in the C++ templates: a static_assert with a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from flashsmith.configs.base import BackwardKernelConfig
from flashsmith.configs.features import Feature, flag, number
from flashsmith.configs.legality import (
    plainest_with_room,
    too_little_shared_memory,
    too_old_a_gpu,
    unsupported_values,
)
from flashsmith.configs.sm80.forward import MIN_COMPUTE_CAPABILITY, MMA_M
from flashsmith.configs.workload import D_HEADS
from flashsmith.dtype import ELEMENT_BYTES, DType
from flashsmith.gpus import (
    WARP_SIZE,
    GpuArchitecture,
    get_gpu_architecture,
)

BACKWARD = "backward"  # the feature of every short form of a backward
STATISTICS_ROWS = 64  # queries in a block of row statistics
STATISTICS_BYTES = 8  # of a query: its log-sum-exp and delta
SUPPORTED_VALUES = {
    "d_head": D_HEADS,
    "B_r": (64, 128),
    "B_c": (32, 64),
    "n_warps": (4, 8),
    "n_stages": (1, 2),
}
MIN_COLUMNS = 32  # min rows of the visited side whose scores are in registers at a time
MAX_ACCUMULATOR_REGISTERS = 208  # of a thread; the rest are for addresses and fragments


@dataclass(frozen=True, order=True)
class FlashBackwardKernelConfig(BackwardKernelConfig):
    """A backward's configuration: one point of the space, with the fields of the C++ struct of the
    same name.

    All its kernels work alike: a block keeps some rows and visits the rows of the other side.
    Blocks of queries accumulate dQ, blocks of keys dK and dV. Nothing is accumulated in global
    memory, so results are the same in every run.

    dtype: element type of all tensors; sums and statistics are FP32.
    d_head: head dimension, 64, 96, 128, 192 or 256.
    B_r: rows of Q and dO, or of K and V, that a thread block keeps.
    B_c: rows of the other side in shared memory at a time.
    n_warps: warps of a thread block, which share the rows that it keeps.
    n_stages: tiles of the visited side in shared memory at a time; with 2 the next one loads while
        this one is computed.
    split_dK_dV: separate blocks accumulate dK and dV, which leaves registers for long rows but
        computes the scores once more.

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
    n_stages: int
    split_dK_dV: bool

    family: ClassVar[str] = "sm80"
    minimum_gpu: ClassVar[str] = "sm_80"
    exact_arch: ClassVar[bool] = False
    kernel_function: ClassVar[str] = "sm80::backward_kernels"
    static_configuration: ClassVar[str] = "sm80::StaticBackwardKernelConfig"
    kernel_arguments: ClassVar[str] = "BackwardKernelArgs"
    kernel_header: ClassVar[str] = "flashsmith/sm80/backward_arguments.cuh"
    kernel_pointer: ClassVar[str] = "FlashBackwardKernels"
    markers: ClassVar[frozenset[str]] = frozenset({BACKWARD})
    tuple_fields: ClassVar[tuple[str, ...]] = ("dtype", "d_head", "B_r", "B_c", "n_warps")
    feature_table: ClassVar[tuple[Feature, ...]] = (
        Feature(BACKWARD),
        number("stages", "n_stages"),
        flag("split", "split_dK_dV"),
    )
    may_be_zero: ClassVar[frozenset[str]] = frozenset()

    @property
    def plainest_gpu(self) -> str:
        """The plainest GPU; some tiles need more shared memory than sm_80 has."""
        return plainest_with_room(self.minimum_gpu, self.shared_memory_bytes)

    def problems(self, gpu: str = "sm_80") -> list[str]:
        architecture = get_gpu_architecture(gpu)
        return [
            *_value_problems(self),
            *_register_problems(self),
            *gpu_problems(self, architecture),
        ]

    @property
    def is_deterministic(self) -> bool:
        return True

    @property
    def threads_per_block(self) -> int:
        return self.n_warps * WARP_SIZE

    @property
    def shared_memory_parts(self) -> dict[str, int]:
        """Tiles of the kept rows and, for every stage, of the visited ones: Q and dO, or K and
        V."""
        row = 2 * self.d_head * ELEMENT_BYTES
        return {
            "kept rows": self.B_r * row,
            "visited rows": self.n_stages * self.B_c * row,
            "statistics": self.n_stages * STATISTICS_ROWS * STATISTICS_BYTES,
        }

    @property
    def held_registers(self) -> dict[str, int]:
        """Registers for scores, their gradients, and dK and dV together or one of them.

        If the scores of a whole tile do not fit, MIN_COLUMNS columns are computed at a time.
        """
        m_tiles = self.B_r // (MMA_M * self.n_warps)
        results = m_tiles * (1 if self.split_dK_dV else 2) * self.d_head // 2
        return {"S, dP": m_tiles * 2 * MIN_COLUMNS // 2, "dK, dV": results}


def _value_problems(config: FlashBackwardKernelConfig) -> Iterator[str]:
    yield from unsupported_values(config, SUPPORTED_VALUES)
    if config.n_warps <= 0 or config.B_r % (MMA_M * config.n_warps) != 0:
        yield (
            f"B_r is {config.B_r}; each of the {config.n_warps} warps keeps {MMA_M} rows, as an "
            f"mma has them, or a multiple, so it must be a multiple of {MMA_M * config.n_warps}."
        )


def _register_problems(config: FlashBackwardKernelConfig) -> Iterator[str]:
    scores, results = config.held_registers.values()
    if results + scores > MAX_ACCUMULATOR_REGISTERS:
        yield (
            f"The accumulators take {scores} (S, dP) + {results} (dK, dV) registers per thread; at "
            f"most {MAX_ACCUMULATOR_REGISTERS} leave room for addresses and fragments."
        )


def gpu_problems(config: BackwardKernelConfig, gpu: GpuArchitecture) -> Iterator[str]:
    """Yields what a GPU lacks for a backward of the sm80 family."""
    yield from too_old_a_gpu(gpu, MIN_COMPUTE_CAPABILITY)
    yield from too_little_shared_memory(gpu, config.shared_memory_bytes)
