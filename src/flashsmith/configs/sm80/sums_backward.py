"""The sums backward of the sm80 family: its configuration, and which can be built.

Each rule of legality has a twin in the C++ templates: a static_assert with a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from flashsmith.configs.base import BackwardKernelConfig
from flashsmith.configs.features import Feature, number
from flashsmith.configs.legality import plainest_with_room, unsupported_values
from flashsmith.configs.sm80.backward import (
    BACKWARD,
    MAX_ACCUMULATOR_REGISTERS,
    STATISTICS_BYTES,
    STATISTICS_ROWS,
    gpu_problems,
)
from flashsmith.configs.sm80.forward import MMA_M
from flashsmith.configs.variant import Variant
from flashsmith.configs.workload import D_HEADS
from flashsmith.dtype import ELEMENT_BYTES, DType
from flashsmith.gpus import WARP_SIZE, get_gpu_architecture

SUMS = "sums"
SUPPORTED_VALUES = {
    "d_head": D_HEADS,
    "B_r": (STATISTICS_ROWS,),
    "B_c": (64, 128),
    "n_warps": (4, 8),
    "n_stages": (1, 2),
    "column_groups": (1, 2, 4),
}
PAIR_COLUMNS = 16  # columns of two n tiles, which one load of fragments reads
MIN_COLUMNS = 16  # min queries whose scores are in registers at a time
_BUFFERS_OF_DS = 2
_ROW_PADDING = 8  # elements that keep neighbouring rows in different banks


@dataclass(frozen=True, order=True)
class Sm80SumsBackwardKernelConfig(BackwardKernelConfig):
    """A backward's configuration: one point of the space, with the fields of the C++ struct of the
    same name.

    A block keeps some keys and visits the queries once: its warps accumulate dK and dV in
    registers, and dQ in FP32 in global memory, in an order that differs from run to run. A last
    step converts dQ.

    dtype: element type of all tensors; sums and statistics are FP32.
    d_head: head dimension, 64, 96, 128, 192 or 256.
    B_r: queries that are visited at a time, 64.
    B_c: keys of a thread block.
    n_warps: warps of a thread block, which share its keys.
    n_stages: tiles of Q and dO in shared memory at a time; with 2 the next ones load while these
        are computed.
    column_groups: warps that share keys: each computes the scores of some queries and some columns
        of dK and dV, and reads the others' scores from shared memory. With 1 a single warp has all
        of them in registers.

    Raises:
        TypeError: a field has the wrong type; the message names it.
        ValueError: a field is negative or zero. Other points may still have no kernel: see
            `problems()`.
    """

    dtype: DType
    d_head: int
    B_r: int
    B_c: int
    n_warps: int
    n_stages: int
    column_groups: int

    family: ClassVar[str] = "sm80"
    scheme: ClassVar[str] = SUMS
    minimum_gpu: ClassVar[str] = "sm_80"
    exact_arch: ClassVar[bool] = False
    kernel_function: ClassVar[str] = "sm80::sums_backward_kernels"
    static_configuration: ClassVar[str] = "sm80::SumsBackwardTraits"
    kernel_arguments: ClassVar[str] = "BackwardKernelArgs"
    kernel_header: ClassVar[str] = "flashsmith/sm80/sums_backward_arguments.cuh"
    kernel_pointer: ClassVar[str] = "Sm80SumsBackwardKernels"
    markers: ClassVar[frozenset[str]] = frozenset({BACKWARD, SUMS})
    tuple_fields: ClassVar[tuple[str, ...]] = ("dtype", "d_head", "B_r", "B_c", "n_warps")
    feature_table: ClassVar[tuple[Feature, ...]] = (
        Feature(BACKWARD),
        Feature(SUMS),
        number("stages", "n_stages"),
        number("groups", "column_groups", absent=1),
    )
    may_be_zero: ClassVar[frozenset[str]] = frozenset()

    def problems(self, gpu: str = "sm_80") -> list[str]:
        architecture = get_gpu_architecture(gpu)
        return [
            *_value_problems(self),
            *_register_problems(self),
            *gpu_problems(self, architecture),
        ]

    @property
    def newer_gpus(self) -> tuple[str, ...]:
        """Architectures that add four numbers by one atomic instruction."""
        return ("sm_90",)

    @property
    def plainest_gpu(self) -> str:
        """The plainest GPU; some tiles need more shared memory than sm_80 has."""
        return plainest_with_room(self.minimum_gpu, self.shared_memory_bytes)

    @property
    def is_deterministic(self) -> bool:
        return False

    def serves_variant(self, variant: Variant) -> bool:
        """Returns whether there are kernels for a variant: none writes the gradient of a bias, or
        into pages, and registers have no room for dropout."""
        return not (variant.bias or variant.dropout or variant.paged)

    @property
    def threads_per_block(self) -> int:
        return self.n_warps * WARP_SIZE

    @property
    def shared_memory_parts(self) -> dict[str, int]:
        """Bytes by content: dS has two tiles, and P exists if warps exchange weights."""
        row = (self.d_head + _ROW_PADDING) * ELEMENT_BYTES
        scores = self.B_c * (self.B_r + _ROW_PADDING) * ELEMENT_BYTES
        queries = self.n_stages * self.B_r
        return {
            "K": self.B_c * row,
            "V": self.B_c * row,
            "Q": queries * row,
            "dO": queries * row,
            "dS": _BUFFERS_OF_DS * scores,
            "P": scores if self.column_groups > 1 else 0,
            "statistics": queries * STATISTICS_BYTES,
        }

    @property
    def held_registers(self) -> dict[str, int]:
        """Registers for the scores of MIN_COLUMNS queries and their gradients, and for dK and
        dV."""
        m_tiles = self.B_c * self.column_groups // (MMA_M * self.n_warps)
        results = m_tiles * self.d_head // self.column_groups
        return {"S, dP": m_tiles * MIN_COLUMNS, "dK, dV": results}


def _value_problems(config: Sm80SumsBackwardKernelConfig) -> Iterator[str]:
    yield from unsupported_values(config, SUPPORTED_VALUES)
    rows = config.B_c * config.column_groups
    if rows % (MMA_M * config.n_warps) != 0:
        yield (
            f"B_c is {config.B_c}; each of the {config.n_warps} warps, {config.column_groups} of "
            f"which share theirs, keeps {MMA_M} keys, as an mma has them, or a multiple."
        )
    pairs = config.d_head // PAIR_COLUMNS
    if pairs % config.column_groups != 0:
        yield (
            f"column_groups is {config.column_groups}; the {pairs} pairs of n tiles of d_head "
            f"{config.d_head} are not a multiple."
        )


def _register_problems(config: Sm80SumsBackwardKernelConfig) -> Iterator[str]:
    scores, results = config.held_registers.values()
    if results + scores > MAX_ACCUMULATOR_REGISTERS:
        yield (
            f"The accumulators take {scores} (S, dP) + {results} (dK, dV) registers per thread; at "
            f"most {MAX_ACCUMULATOR_REGISTERS} leave room for addresses and fragments."
        )
