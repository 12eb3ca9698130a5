"""The split backward of the sm90 family: its configuration, and which can be built.

Each rule of legality has a twin in the C++ templates: a static_assert with a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from flashsmith.configs.base import BackwardKernelConfig
from flashsmith.configs.features import Feature, number
from flashsmith.configs.legality import another_gpu, too_little_shared_memory
from flashsmith.configs.sm80.backward import BACKWARD
from flashsmith.configs.sm90.backward import B_R, STATISTICS_BYTES
from flashsmith.configs.sm90.forward import WGMMA
from flashsmith.configs.sm90.hardware import COMPUTE_CAPABILITY, WGMMA_M, register_split
from flashsmith.configs.variant import Variant
from flashsmith.configs.workload import D_HEADS
from flashsmith.dtype import ELEMENT_BYTES, DType
from flashsmith.gpus import WARPGROUP_SIZE, GpuArchitecture, get_gpu_architecture

SPLIT = "split"
SUPPORTED_D_HEADS = D_HEADS
N_WARPGROUPS = 2
MAX_STAGES = 4
# The min stages: two stages of K, and of Q, are in use at a time.
MIN_STAGES = {"K_stages": 2, "V_stages": 1, "Q_stages": 2, "dO_stages": 1}
MAX_CLUSTER = 2
_BARRIER_BYTES = 8
_BUFFERS_OF_P = 2


@dataclass(frozen=True, order=True)
class Sm90SplitBackwardKernelConfig(BackwardKernelConfig):
    """A backward's configuration: one point of the space, with the fields of the C++ struct of the
    same name.

    One kernel computes dQ, another dK and dV; both compute the scores. In the first kernel two
    warpgroups keep queries and visit keys. In the second they keep the same keys and visit queries;
    one computes dV and passes the weights to the other, which computes dK. Nothing is accumulated
    in global memory, so results are the same in every run.

    dtype: element type of all tensors; sums and statistics are FP32.
    d_head: head dimension, 64, 96, 128, 192 or 256.
    B_r: queries of a tile, 64. A block of dQ has a tile for each warpgroup.
    B_c: keys of a tile, 64.
    n_warpgroups: consumer warpgroups, 2; one more loads.
    K_stages: blocks of K in shared memory at a time, for dQ.
    V_stages: blocks of V in shared memory at a time, for dQ.
    Q_stages: blocks of Q in shared memory at a time, for dK and dV.
    dO_stages: blocks of dO in shared memory at a time, for dK and dV.
    cluster_size: thread blocks that load Q and dO together, for dK and dV: 1 or 2.

    Raises:
        TypeError: a field has the wrong type; the message names it.
        ValueError: a field is negative or zero. Other points may still have no kernel: see
            `problems()`.
    """

    dtype: DType
    d_head: int
    B_r: int
    B_c: int
    n_warpgroups: int
    K_stages: int
    V_stages: int
    Q_stages: int
    dO_stages: int
    cluster_size: int

    family: ClassVar[str] = "sm90"
    scheme: ClassVar[str] = SPLIT
    minimum_gpu: ClassVar[str] = "sm_90a"
    exact_arch: ClassVar[bool] = True
    reads_by_maps: ClassVar[bool] = True
    kernel_function: ClassVar[str] = "sm90::split_backward_kernels"
    static_configuration: ClassVar[str] = "sm90::SplitBackwardTraits"
    kernel_arguments: ClassVar[str] = "Sm90BackwardKernelArgs"
    kernel_header: ClassVar[str] = "flashsmith/sm90/split_backward_arguments.cuh"
    kernel_pointer: ClassVar[str] = "Sm90SplitBackwardKernels"
    markers: ClassVar[frozenset[str]] = frozenset({BACKWARD, WGMMA, SPLIT})
    tuple_fields: ClassVar[tuple[str, ...]] = ("dtype", "d_head", "B_r", "B_c", "n_warpgroups")
    feature_table: ClassVar[tuple[Feature, ...]] = (
        Feature(BACKWARD),
        Feature(WGMMA),
        Feature(SPLIT),
        number("k_stages", "K_stages"),
        number("v_stages", "V_stages"),
        number("q_stages", "Q_stages"),
        number("do_stages", "dO_stages"),
        number("cluster", "cluster_size", absent=1),
    )
    may_be_zero: ClassVar[frozenset[str]] = frozenset()

    def problems(self, gpu: str = "sm_90a") -> list[str]:
        architecture = get_gpu_architecture(gpu)
        return [
            *_tile_problems(self),
            *_stage_problems(self),
            *_gpu_problems(self, architecture),
        ]

    @property
    def is_deterministic(self) -> bool:
        return True

    def serves_variant(self, variant: Variant) -> bool:
        """Returns whether there are kernels for a variant: registers have no room for derivatives
        of scores, nor for the caller's functions, and no kernel writes gradients of a bias or into
        pages."""
        return not (variant.softcap or variant.bias or variant.score or variant.paged)

    @property
    def threads_per_block(self) -> int:
        return (self.n_warpgroups + 1) * WARPGROUP_SIZE

    @property
    def shared_memory_parts(self) -> dict[str, int]:
        """The bytes by content, for the kernel that has more."""
        return max(self.dQ_parts, self.dK_dV_parts, key=lambda parts: sum(parts.values()))

    @property
    def held_registers(self) -> dict[str, int]:
        """Registers of a thread, whose warpgroup has 64 rows: one of the gradients, scores and
        their gradients."""
        return {"dQ, dK or dV": self.d_head // 2, "S, dP": self.B_c}

    @property
    def moved_registers(self) -> tuple[int, int] | None:
        return register_split(self.n_warpgroups)

    @property
    def tile_bytes(self) -> int:
        """The bytes of a tile of Q, dO, K or V."""
        return WGMMA_M * self.d_head * ELEMENT_BYTES

    @property
    def dQ_parts(self) -> dict[str, int]:
        """Shared memory of dQ's kernel: tiles of Q and dO for each warpgroup, and stages of K and
        V."""
        n_barriers = self.n_warpgroups + 2 * (self.K_stages + self.V_stages)
        return {
            "Q": self.n_warpgroups * self.tile_bytes,
            "dO": self.n_warpgroups * self.tile_bytes,
            "K": self.K_stages * self.tile_bytes,
            "V": self.V_stages * self.tile_bytes,
            "barriers": n_barriers * _BARRIER_BYTES,
        }

    @property
    def dK_dV_parts(self) -> dict[str, int]:
        """Shared memory of the kernel of dK and dV: tiles of K and V, stages of Q and dO, and P of
        two blocks."""
        n_barriers = 1 + 2 * (self.Q_stages + self.dO_stages + _BUFFERS_OF_P)
        return {
            "K": self.tile_bytes,
            "V": self.tile_bytes,
            "Q": self.Q_stages * self.tile_bytes,
            "dO": self.dO_stages * self.tile_bytes,
            "P": _BUFFERS_OF_P * self.B_r * self.B_c * ELEMENT_BYTES,
            "statistics": self.Q_stages * self.B_r * STATISTICS_BYTES,
            "barriers": n_barriers * _BARRIER_BYTES,
        }


def _tile_problems(config: Sm90SplitBackwardKernelConfig) -> Iterator[str]:
    if config.d_head not in SUPPORTED_D_HEADS:
        yield f"d_head is {config.d_head}; supported are {', '.join(map(str, SUPPORTED_D_HEADS))}."
    if config.B_r != B_R:
        yield f"B_r is {config.B_r}; tiles of queries are those of row statistics, {B_R}."
    if config.B_c != WGMMA_M:
        yield f"B_c is {config.B_c}; tiles of keys are the rows of a wgmma, {WGMMA_M}."
    if config.n_warpgroups != N_WARPGROUPS:
        yield (
            f"n_warpgroups is {config.n_warpgroups}; {N_WARPGROUPS} have the rows of dQ, or one of "
            "them dK and the other dV."
        )


def _stage_problems(config: Sm90SplitBackwardKernelConfig) -> Iterator[str]:
    for name, minimum in MIN_STAGES.items():
        stages = getattr(config, name)
        if not minimum <= stages <= MAX_STAGES:
            yield f"{name} is {stages}; supported are {minimum} to {MAX_STAGES}."
    if config.cluster_size > MAX_CLUSTER:
        yield f"cluster_size is {config.cluster_size}; supported are 1 and {MAX_CLUSTER}."


def _gpu_problems(config: Sm90SplitBackwardKernelConfig, gpu: GpuArchitecture) -> Iterator[str]:
    yield from another_gpu(gpu, COMPUTE_CAPABILITY, config.family)
    for name, parts in {"dQ": config.dQ_parts, "dK and dV": config.dK_dV_parts}.items():
        size = sum(parts.values())
        yield from too_little_shared_memory(gpu, size, f"The tiles of the kernel of {name}")
