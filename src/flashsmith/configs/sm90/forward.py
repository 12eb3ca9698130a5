"""The configuration of the sm90 family's forward kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from flashsmith.configs.base import ForwardKernelConfig
from flashsmith.configs.features import Feature, flag, formerly, number
from flashsmith.configs.legality import another_gpu, too_little_shared_memory
from flashsmith.configs.sm90.forward_legality import (
    OTHER_REGISTERS,
    TO_TRANSPOSE,
    max_lead_log2,
    register_problems,
    schedule_problems,
    softmax_problems,
    tile_problems,
)
from flashsmith.configs.sm90.fp8 import fp8_problems
from flashsmith.configs.sm90.hardware import (
    COMPUTE_CAPABILITY,
    WGMMA_K_BYTES,
    WGMMA_M,
    register_split,
)
from flashsmith.configs.variant import Variant
from flashsmith.configs.workload import AnyWorkload, Workload
from flashsmith.dtype import ELEMENT_BYTES, DType
from flashsmith.gpus import REGISTERS_PER_SM, WARPGROUP_SIZE, get_gpu_architecture
from flashsmith.problem import Problem

WGMMA = "wgmma"  # the feature of every short form of this family, and of no other
_STAGED_COLUMNS = 128  # max columns of O in shared memory at a time
_QUEUE_BYTES = 16  # shared memory of two entries
_END_BYTES = 32  # shared memory: whether V ends, for each buffer of arriving V
_BARRIER_BYTES = 8
CHUNK_BYTES = 16
FP8_BYTES = 1

# Registers of a consumer's thread for O, S and P if work depends on a score's position, by the
# number of consumer warpgroups; a bias leaves fewer.
_ROOM_BESIDE_PLACES = {1: 176, 2: 160, 3: 120, 4: 80}
_ROOM_BESIDE_BIAS = {1: 152, 2: 152, 3: 108}
# FP8 scores, and a producer that transposes V, take these registers of that room.
_FP8_SCORES_TAKE, _FP8_VALUES_TAKE = 8, 16
MAX_PACKED_HEADS = WGMMA_M  # a warpgroup has at least one query of all heads
_MIN_KEYS = 64  # min B_c for which a third or a fourth warpgroup is worth its registers


@formerly(long_turns="ping_pong_until_exp")
@dataclass(frozen=True, order=True)
class Sm90ForwardKernelConfig(ForwardKernelConfig):
    """A forward kernel's configuration: one point of the space, with the fields of the C++ struct
    of the same name.

    A thread block has a producer warpgroup, which loads, and consumer warpgroups, which compute.

    dtype: element type of Q, K, V and O, except FP8 tensors; sums and statistics are FP32.
    d_head: head dimension, one of SUPPORTED_D_HEADS.
    B_r: rows of Q that a thread block works on at a time, 64 for each consumer warpgroup.
    B_c: rows of K and V that a stage holds.
    n_warpgroups: consumer warpgroups.
    n_stages: blocks of K, and of V, in shared memory at a time, by which the producer may be ahead.
    Q_steps_in_registers: how many of the d_head / 16 steps of Q K^T (fp8_scores has half of them)
        read Q from registers, loaded once a tile, instead of shared memory. Each step costs 4
        registers a thread and saves shared-memory traffic; with all steps, Q's buffer is free for
        the next tile.
    overlap_softmax: Q K^T of the next block runs during the softmax of this one; S and P have
        separate registers.
    ping_pong: the consumer warpgroups use the tensor cores in turn.
    persistent: one thread block on each SM processes one tile after the other.
    dynamic_queue: persistent blocks take their next tile from a queue in global memory, so that no
        block waits for another's long tile; that needs 8 bytes of workspace. Else block b of n
        processes the tiles b, b + n, b + 2 n and so on.
    overlap_tiles: persistent blocks overlap a tile's last P V with the next tile's first Q K^T.
    heads_per_group: heads whose tiles are processed together, longest first; 0: head by head, which
        keeps K and V in L2.
    cluster_size: thread blocks that process neighbouring blocks of Q and load K and V together, by
        multicast: each loads a share for all; 1: no cluster. It excludes dynamic_queue.
    lazy_rescale_log2: O is rescaled only when a row's max has grown by more than a factor 2^this;
        0: at every block, with fp8_values when the max has grown at all.
    stale_maximum: compute a new max only when a score exceeds the bound of the lazy rescale; in
        FP16 up to a lazy_rescale_log2 of 4.
    fma_exponentials: how many of 16 exponentials are polynomials on the FMA units.
    tma_store: O leaves through shared memory by bulk copies, 128 columns at a time, else from
        registers.
    fp8_scores: Q and K are FP8 (e4m3), and Q K^T has d_head / 32 steps.
    fp8_values: V is FP8, too, and P is converted to e4m3; three warps of the producer warpgroup
        transpose V. It excludes stale_maximum and clusters.
    two_level: each block's P V is summed separately and added to O in FP32, because tensor cores
        keep about 14 bits of FP8 sums; it costs d_head / 2 more registers a thread.
    ping_pong_until_exp: with ping_pong a turn lasts until the exponentials begin, not only until
        products are issued, because FP8 products are too short to keep warpgroups apart.
    skip_unseen: a warpgroup computes only the first half of the first block it visits, in whole
        steps of wgmma, if its rows see no key of the second: on a causal diagonal, or where keys
        end; and no block before the windows of its rows. It takes more code, and needs
        overlap_softmax.
    packed_heads: a tile has the rows of all query heads that share a head of K and V, query by
        query (PackGQA): a warpgroup has 64 / g queries of g heads. Tiles of fewer queries waste
        less at a sequence's end and on a causal diagonal; rows beyond whole queries are left, with
        7 heads one of 64. It excludes FP8, and work on scores that depends on the head.

    Raises:
        TypeError: a field has the wrong type; the message names it.
        ValueError: a field is negative, or zero where 0 has no meaning. Other points may still have
            no kernel: see `problems()`.
    """

    dtype: DType
    d_head: int
    B_r: int
    B_c: int
    n_warpgroups: int
    n_stages: int
    Q_steps_in_registers: int
    overlap_softmax: bool
    ping_pong: bool
    persistent: bool
    dynamic_queue: bool
    overlap_tiles: bool
    heads_per_group: int
    cluster_size: int
    lazy_rescale_log2: int
    stale_maximum: bool
    fma_exponentials: int
    tma_store: bool
    fp8_scores: bool = False
    fp8_values: bool = False
    two_level: bool = False
    ping_pong_until_exp: bool = False
    skip_unseen: bool = False
    packed_heads: bool = False

    family: ClassVar[str] = "sm90"
    minimum_gpu: ClassVar[str] = "sm_90a"
    exact_arch: ClassVar[bool] = True
    reads_by_maps: ClassVar[bool] = True
    kernel_function: ClassVar[str] = "sm90::forward_kernel"
    static_configuration: ClassVar[str] = "sm90::KernelTraits"
    kernel_arguments: ClassVar[str] = "Sm90ForwardKernelArgs"
    kernel_header: ClassVar[str] = "flashsmith/sm90/arguments.cuh"
    kernel_pointer: ClassVar[str] = "sm90_forward_kernel_fn"
    markers: ClassVar[frozenset[str]] = frozenset({WGMMA})
    tuple_fields: ClassVar[tuple[str, ...]] = ("dtype", "d_head", "B_r", "B_c", "n_warpgroups")
    feature_table: ClassVar[tuple[Feature, ...]] = (
        Feature(WGMMA),
        number("stages", "n_stages"),
        number("q_regs", "Q_steps_in_registers", absent=0),
        flag("overlap", "overlap_softmax"),
        flag("ping_pong", "ping_pong"),
        flag("persistent", "persistent"),
        flag("queue", "dynamic_queue"),
        flag("tiles", "overlap_tiles"),
        number("heads", "heads_per_group", absent=0),
        number("cluster", "cluster_size", absent=1),
        number("lazy", "lazy_rescale_log2", absent=0),
        flag("stale", "stale_maximum"),
        number("fma_exp", "fma_exponentials", absent=0),
        flag("tma_store", "tma_store"),
        flag("fp8_scores", "fp8_scores"),
        flag("fp8_values", "fp8_values"),
        flag("two_level", "two_level"),
        flag("ping_pong_until_exp", "ping_pong_until_exp", former="long_turns"),
        flag("skip_unseen", "skip_unseen"),
        flag("packed_heads", "packed_heads"),
    )
    may_be_zero: ClassVar[frozenset[str]] = frozenset(
        ("Q_steps_in_registers", "heads_per_group", "lazy_rescale_log2", "fma_exponentials")
    )

    def problems(self, gpu: str = "sm_90a") -> list[str]:
        architecture = get_gpu_architecture(gpu)
        return [
            *tile_problems(self),
            *schedule_problems(self),
            *softmax_problems(self),
            *fp8_problems(self),
            *register_problems(self),
            *another_gpu(architecture, COMPUTE_CAPABILITY, self.family),
            *too_little_shared_memory(architecture, self.shared_memory_bytes),
        ]

    def for_dtype(self, dtype: DType) -> Sm90ForwardKernelConfig:
        """Returns the same tiles for another element type; FP16 allows less lead of a stale max."""
        lead = max_lead_log2(dtype, stale_maximum=self.stale_maximum)
        return replace(self, dtype=dtype, lazy_rescale_log2=min(self.lazy_rescale_log2, lead))

    def adapted_to(self, variant: Variant) -> Sm90ForwardKernelConfig:
        """Returns a configuration that leaves out what windows hide; and for work on every score,
        tiles with Q in shared memory only, fewer keys at a time, and if need be fewer warpgroups.

        Two-level sums leave few registers for bounds and positions. Pages are not loaded by
        clusters. Heads are not packed where the work on a score depends on its head.
        """
        if self.packed_heads and not self.serves_variant(variant):
            return replace(self, packed_heads=False).adapted_to(variant)
        if variant.paged and self.cluster_size > 1:
            return replace(self, cluster_size=1).adapted_to(variant)
        if not variant.knows_positions:
            tight = self.two_level and (variant.window or variant.varlen)
            fewer = max(self.B_c - self.key_multiple, self.key_multiple)
            fitting = self.with_keys(fewer) if tight else self
            return fitting.skipping_unseen() if variant.window else fitting
        room = _ROOM_BESIDE_BIAS if variant.bias else _ROOM_BESIDE_PLACES
        fp8 = _FP8_SCORES_TAKE * self.fp8_scores + _FP8_VALUES_TAKE * self.fp8_values
        # A thread's O takes d_head / 2 registers, or twice that, and S and P take 3 / 4 or 5 / 8 a
        # key.
        O_registers, eighths = self.d_head // (1 if self.two_level else 2), 4 + self.value_bytes
        max_keys = {
            n: (room[n] - fp8 - O_registers) * 8 // eighths // self.key_multiple * self.key_multiple
            for n in room
        }
        if self.two_level and max_keys[min(2, self.n_warpgroups)] < _MIN_KEYS:
            return replace(self, two_level=False).adapted_to(variant)
        n_warpgroups = max(
            n for n in room if n <= self.n_warpgroups and (n <= 2 or max_keys[n] >= _MIN_KEYS)
        )
        return replace(
            self,
            n_warpgroups=n_warpgroups,
            ping_pong=self.ping_pong and n_warpgroups > 1,
            ping_pong_until_exp=self.ping_pong_until_exp and n_warpgroups > 1,
            B_r=n_warpgroups * WGMMA_M,
            Q_steps_in_registers=0,
        ).with_keys(min(self.B_c, max(max_keys[n_warpgroups], self.key_multiple)))

    def versions_for(self, variant: Variant) -> tuple[Sm90ForwardKernelConfig, ...]:
        if not self.may_pack(variant):
            return (self,)
        return replace(self, packed_heads=False), replace(self, packed_heads=True)

    def may_pack(self, variant: Variant) -> bool:
        """Returns whether packed heads come into question for a variant: there is a kernel, and
        a diagonal without a window, where they are known to save work."""
        packed = replace(self, packed_heads=True)
        has_diagonal = variant.causal and not variant.window
        return has_diagonal and not self.fp8_scores and packed.serves_variant(variant)

    def in_no_order(self) -> Sm90ForwardKernelConfig:
        return replace(self, heads_per_group=0)

    def skipping_unseen(self) -> Sm90ForwardKernelConfig:
        """Returns the configuration with skip_unseen if there is such a kernel of 16-bit tensors:
        with a window of 128 keys it is up to 13% faster, with long ones level, and under a causal
        mask alone up to 2% slower, because its code is larger."""
        if self.fp8_scores or not self.overlap_softmax or self.B_c <= self.key_multiple:
            return self
        return replace(self, skip_unseen=True)

    def with_keys(self, B_c: int) -> Sm90ForwardKernelConfig:
        """Returns the configuration with blocks of another height, in halves only if these are
        possible."""
        return replace(self, B_c=B_c, skip_unseen=self.skip_unseen and B_c > self.key_multiple)

    @property
    def score_bytes(self) -> int:
        """The bytes of an element of Q and K."""
        return FP8_BYTES if self.fp8_scores else ELEMENT_BYTES

    @property
    def value_bytes(self) -> int:
        """The bytes of an element of V and of P."""
        return FP8_BYTES if self.fp8_values else ELEMENT_BYTES

    @property
    def QK_steps(self) -> int:
        """The wgmma instructions of a product Q K^T."""
        return self.d_head * self.score_bytes // WGMMA_K_BYTES

    @property
    def PV_steps(self) -> int:
        return self.B_c * self.value_bytes // WGMMA_K_BYTES

    @property
    def key_multiple(self) -> int:
        """The number that B_c is a multiple of: the keys that a wgmma sums over."""
        return WGMMA_K_BYTES // self.value_bytes

    @property
    def row_multiple(self) -> int:
        return CHUNK_BYTES // self.score_bytes

    def serves(self, problem: Problem) -> bool:
        return not self.fp8_scores and super().serves(problem)

    def has_room_for(self, problem: Problem) -> bool:
        whole = problem.d_head % self.row_multiple == 0
        whole &= problem.d_v % (CHUNK_BYTES // self.value_bytes) == 0
        return whole and not self._why_not_packed(problem) and super().has_room_for(problem)

    def why_not(self, workload: AnyWorkload) -> str:
        assert isinstance(workload, Workload)
        return super().why_not(workload) or self._why_not_packed(workload.problem)

    def _why_not_packed(self, problem: Problem) -> str:
        """Returns why heads cannot be packed; "" if they can, or need not be."""
        if not self.packed_heads or problem.group_size <= MAX_PACKED_HEADS:
            return ""
        return f"it packs up to {MAX_PACKED_HEADS} heads, not {problem.group_size}"

    def queries_of_tile(self, problem: Problem) -> int:
        if not self.packed_heads:
            return self.B_r
        return self.n_warpgroups * (WGMMA_M // problem.group_size)

    def heads_of_tiles(self, problem: Problem) -> int:
        return problem.heads_kv if self.packed_heads else problem.heads

    def served_of(self, variant: Variant) -> Variant:
        if self.fp8_scores:
            return replace(variant, bias=False, score=0, dropout=False, paged=False)
        if self.packed_heads:
            masked = replace(variant, softcap=False, alibi=False, bias=False, sinks=False, score=0)
            return replace(masked, dropout=False, paged=False)
        is_paged = variant.paged and variant.varlen and self.cluster_size == 1
        return variant if is_paged == variant.paged else replace(variant, paged=is_paged)

    @property
    def fp8_tensors(self) -> frozenset[str]:
        return frozenset(("qk" if self.fp8_scores else "") + ("v" if self.fp8_values else ""))

    @property
    def threads_per_block(self) -> int:
        return (self.n_warpgroups + 1) * WARPGROUP_SIZE

    @property
    def shared_memory_parts(self) -> dict[str, int]:
        """Bytes by content: tiles of Q, K and V, and of V before it is transposed; columns of O on
        their way out; words; barriers, one full and one empty for Q of each warpgroup and for each
        stage, and two for the queue."""
        staged_columns = min(self.d_head, _STAGED_COLUMNS) if self.tma_store else 0
        transposed_stages = self.n_stages if self.fp8_values else 0
        row, row_of_V = self.d_head * self.score_bytes, self.d_head * self.value_bytes
        n_barriers = 2 * self.n_warpgroups + 4 * self.n_stages + 2 * transposed_stages + 2
        return {
            "Q": self.B_r * row,
            "K": self.n_stages * self.B_c * row,
            "V": self.n_stages * self.B_c * row_of_V,
            "arriving V": transposed_stages * self.B_c * row_of_V,
            "ends of V": _END_BYTES if self.fp8_values else 0,
            "O staging": self.B_r * staged_columns * ELEMENT_BYTES,
            "queue": _QUEUE_BYTES,
            "barriers": n_barriers * _BARRIER_BYTES,
        }

    @property
    def held_registers(self) -> dict[str, int]:
        return {
            "O": self.d_head // 2,
            "S": self.B_c // 2,
            # P, half as large, reuses the registers of S unless the softmax overlaps.
            "P": self.B_c * self.value_bytes // 8 if self.overlap_softmax else 0,
            "a block's O": self.d_head // 2 if self.two_level else 0,
            "Q": 4 * self.Q_steps_in_registers,
        }

    @property
    def moved_registers(self) -> tuple[int, int] | None:
        return register_split(self.n_warpgroups, TO_TRANSPOSE if self.fp8_values else 0)

    @property
    def compute_warpgroups(self) -> int:
        return self.n_warpgroups

    @property
    def resident_blocks_by_registers(self) -> int:
        """The resident blocks: one if blocks are persistent, or if several warpgroups take all
        registers."""
        if self.persistent or self.n_warpgroups > 1:
            return 1
        held = sum(self.held_registers.values()) + OTHER_REGISTERS
        registers = held * self.threads_per_block
        return max(1, REGISTERS_PER_SM // registers)

    @property
    def has_polynomials(self) -> bool:
        return self.fma_exponentials > 0
