"""Decode of the sm80 family: its configuration, and which can be built.

Each rule of legality has a twin in the C++ templates: a static_assert with a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from flashsmith.configs.base import DecodeKernelConfig
from flashsmith.configs.features import Feature, flag, formerly, number
from flashsmith.configs.legality import (
    plainest_with_room,
    too_little_shared_memory,
    too_old_a_gpu,
    unsupported_values,
)
from flashsmith.configs.sm80.forward import (
    CHUNK_BYTES,
    MAX_CHUNKS_SIDE_BY_SIDE,
    MIN_COMPUTE_CAPABILITY,
    MMA_M,
)
from flashsmith.configs.workload import D_HEADS
from flashsmith.dtype import ELEMENT_BYTES, DType
from flashsmith.gpus import (
    WARP_SIZE,
    GpuArchitecture,
    get_gpu_architecture,
)

DECODE = "decode"  # the feature of every short form
SUPPORTED_VALUES = {
    "d_head": D_HEADS,
    "B_r": (MMA_M, 2 * MMA_M, 4 * MMA_M),
    "B_c": (16, 32, 64),
    "n_warps": (2, 4, 8),
    "n_stages": tuple(range(2, 9)),
    "blocks_per_SM": (1, 2, 3, 4),
}
REGISTERS_PER_SM = 65536
ALIGNMENT_BYTES = 128  # of the parts of shared memory
LONGEST_Q_IN_REGISTERS = 128  # d_head; longer rows of Q stay in shared memory
FP8_BYTES, FLOAT_BYTES = 1, 4
SUM_ROW_PADDING, SUM_ROW_PADDING_FP8 = 8, 16  # between rows of partial results, in numbers
FRAGMENT_REGISTERS = 24  # min registers of a thread for fragments of K and V and for addresses


@formerly(token_scales="per_token_scale")
@dataclass(frozen=True, order=True)
class FlashDecodeKernelConfig(DecodeKernelConfig):
    """Decode's configuration: one point of the space, with the fields of the C++ struct of the same
    name.

    A block computes B_r rows of Q, of the heads that share a head of the KV cache, over a split of
    the keys. B_r / 16 of its warps form a team: they visit the same keys, each for 16 different
    rows. A team waits for no other team.

    dtype: element type of all tensors, except K and V with fp8_cache; sums are FP32.
    d_head: head dimension, 64, 96, 128, 192 or 256.
    B_r: rows of Q that a thread block works on, packed from queries and heads: 16 for each warp of
        a team.
    B_c: keys and values of a stage, which a team visits at a time.
    n_warps: warps of a thread block; its teams visit blocks of keys in turn.
    n_stages: stages of each team; all but one load while one is computed.
    blocks_per_SM: thread blocks that an SM has at a time, and that the grid has for each SM.
    fp8_cache: K and V are FP8 (e4m3), and are converted to 16 bits in registers.
    per_token_scale: each row of K and V may have a scale (per-token scales).

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
    blocks_per_SM: int
    fp8_cache: bool = False
    per_token_scale: bool = False

    family: ClassVar[str] = "sm80"
    minimum_gpu: ClassVar[str] = "sm_80"
    exact_arch: ClassVar[bool] = False
    is_set_of_kernels: ClassVar[bool] = True  # with the kernel that appends keys to a cache
    kernel_function: ClassVar[str] = "sm80::decode_kernels"
    static_configuration: ClassVar[str] = "sm80::StaticDecodeKernelConfig"
    kernel_arguments: ClassVar[str] = "DecodeKernelArgs"
    kernel_header: ClassVar[str] = "flashsmith/sm80/decode_arguments.cuh"
    kernel_pointer: ClassVar[str] = "FlashDecodeKernels"
    markers: ClassVar[frozenset[str]] = frozenset({DECODE})
    tuple_fields: ClassVar[tuple[str, ...]] = ("dtype", "d_head", "B_r", "B_c", "n_warps")
    feature_table: ClassVar[tuple[Feature, ...]] = (
        Feature(DECODE),
        flag("fp8_cache", "fp8_cache"),
        flag("per_token_scale", "per_token_scale", former="token_scales"),
        number("stages", "n_stages"),
        number("blocks", "blocks_per_SM"),
    )
    may_be_zero: ClassVar[frozenset[str]] = frozenset()

    def problems(self, gpu: str = "sm_80") -> list[str]:
        architecture = get_gpu_architecture(gpu)
        return [
            *unsupported_values(self, SUPPORTED_VALUES),
            *_scale_problems(self),
            *_team_problems(self),
            *_ring_problems(self),
            *_register_problems(self),
            *_gpu_problems(self, architecture),
        ]

    @property
    def newer_gpus(self) -> tuple[str, ...]:
        """Architectures that convert e4m3 by an instruction, and that let launches overlap."""
        return ("sm_89", "sm_90") if self.fp8_cache else ("sm_90",)

    @property
    def plainest_gpu(self) -> str:
        """The plainest GPU; some rings of stages, which the tuner tries, need more shared memory
        than sm_80 has."""
        return plainest_with_room(self.minimum_gpu, self.shared_memory_bytes)

    @property
    def tensor_core_rate(self) -> float:
        return 0.3

    @property
    def threads_per_block(self) -> int:
        return self.n_warps * WARP_SIZE

    @property
    def row_warps(self) -> int:
        """The warps of a team, with 16 rows of Q each."""
        return max(self.B_r // MMA_M, 1)

    @property
    def n_teams(self) -> int:
        return self.n_warps // self.row_warps

    @property
    def shared_memory_parts(self) -> dict[str, int]:
        """A ring of stages of K and V for each team, then Q, and a word for the queue."""
        q = ALIGNMENT_BYTES
        if self.d_head > LONGEST_Q_IN_REGISTERS:
            q = self.B_r * self.d_head * ELEMENT_BYTES
        return {"rings": self.n_teams * self.ring_bytes, "Q": q, "queue": ALIGNMENT_BYTES}

    @property
    def held_registers(self) -> dict[str, int]:
        """Registers for the accumulators of O, for Q as an operand, and for scores."""
        q = self.d_head // 4 if self.d_head <= LONGEST_Q_IN_REGISTERS else 0
        return {"O": self.d_head // 2, "Q": q, "S": self.B_c // 2}

    @property
    def ring_bytes(self) -> int:
        """The bytes of one team's ring."""
        scales = 2 * WARP_SIZE * FLOAT_BYTES if self.per_token_scale else 0
        return self.n_stages * (2 * self.B_c * self.row_bytes + scales)

    @property
    def row_bytes(self) -> int:
        """The bytes of a row of K or V."""
        return self.d_head * (FP8_BYTES if self.fp8_cache else ELEMENT_BYTES)


def _scale_problems(config: FlashDecodeKernelConfig) -> Iterator[str]:
    if config.per_token_scale and not config.fp8_cache:
        yield "per_token_scale is on without fp8_cache; keys and values of 16 bits have no scales."
    if config.per_token_scale and config.row_warps > 1:
        yield (
            f"B_r is {config.B_r} with per_token_scale, which a warp copies for its own keys; only "
            f"{MMA_M} is supported."
        )


def _team_problems(config: FlashDecodeKernelConfig) -> Iterator[str]:
    """Yields problems of sharing keys, and the copying of them, among the warps of a team."""
    if config.n_warps % config.row_warps:
        yield (
            f"n_warps is {config.n_warps}; {config.row_warps} warps are a team for {config.B_r} "
            f"rows, so it must be a multiple of {config.row_warps}."
        )
    if config.B_c > config.row_warps * WARP_SIZE:
        yield (
            f"B_c is {config.B_c}; a lane looks up the page of one key, so at most "
            f"{WARP_SIZE} are supported for each of the {config.row_warps} warps of a team."
        )
    rows = _rows_of_a_copy(config)
    if config.B_c % (config.row_warps * rows):
        yield (
            f"B_c is {config.B_c}; each of the {config.row_warps} warps of a team copies {rows} "
            f"rows at a time, so it must be a multiple of {config.row_warps * rows}."
        )


def _rows_of_a_copy(config: FlashDecodeKernelConfig) -> int:
    """Returns how many rows a warp copies at a time, 16 bytes a lane: whole rows, or parts of a row
    that are a power of two of chunks."""
    chunks = config.row_bytes // CHUNK_BYTES
    return WARP_SIZE // min(chunks & -chunks or 1, MAX_CHUNKS_SIDE_BY_SIDE)


def _ring_problems(config: FlashDecodeKernelConfig) -> Iterator[str]:
    """Yields the problem of a ring that is too small for a team's partial result, which leaves
    through it: rows of O, and two numbers a row."""
    row = config.d_head + (SUM_ROW_PADDING_FP8 if config.fp8_cache else SUM_ROW_PADDING) + 2
    needed = config.B_r * row * FLOAT_BYTES
    if needed > config.ring_bytes:
        yield (
            f"A team's ring has {config.ring_bytes} bytes; its sums take {needed}: more stages, or "
            "a larger B_c, are needed."
        )


def _register_problems(config: FlashDecodeKernelConfig) -> Iterator[str]:
    needed = sum(config.held_registers.values()) + FRAGMENT_REGISTERS
    threads = config.blocks_per_SM * config.threads_per_block
    if needed * threads > REGISTERS_PER_SM:
        yield (
            f"{config.blocks_per_SM} blocks of {config.threads_per_block} threads leave "
            f"{REGISTERS_PER_SM // threads} registers a thread; at least {needed} are needed."
        )


def _gpu_problems(config: FlashDecodeKernelConfig, gpu: GpuArchitecture) -> Iterator[str]:
    yield from too_old_a_gpu(gpu, MIN_COMPUTE_CAPABILITY)
    yield from too_little_shared_memory(gpu, config.shared_memory_bytes, "The stages")
