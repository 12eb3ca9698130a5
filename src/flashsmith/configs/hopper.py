"""The configuration of a forward kernel of the sm90 family."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from flashsmith.configs.dtype import DType
from flashsmith.configs.family import ELEMENT_BYTES, ForwardConfigBase
from flashsmith.configs.features import Feature, flag, number
from flashsmith.configs.hopper_legality import find_hopper_problems, max_lead_log2

WGMMA = "wgmma"  # the feature of every short form of this family, and of no other
WARPGROUP_SIZE = 128
_STAGED_COLUMNS = 128  # of O, at most, in shared memory at a time
_QUEUE_BYTES = 16  # of shared memory: two entries
_BARRIER_BYTES = 8


@dataclass(frozen=True, order=True)
class HopperForwardKernelConfig(ForwardConfigBase):
    """How a kernel works: one point of the configuration space, the C++ struct of the same name.

    A thread block has one warpgroup that loads, and others that compute (consumers).

    dtype: element type of Q, K, V and O; sums and statistics are FP32.
    d_head: head dimension: 64, 96, 128, 192 or 256.
    B_r: rows of Q that a thread block works on at a time, 64 for each consumer warpgroup.
    B_c: rows of K and V that a stage holds.
    n_warpgroups: consumer warpgroups.
    n_stages: blocks of K, and of V, that are in shared memory at a time.
    Q_steps_in_registers: how many of the d_head / 16 steps of Q K^T take Q from registers, the
        others from shared memory.
    overlap_softmax: Q K^T of the next block runs while the softmax of this one does.
    ping_pong: the consumer warpgroups take turns with the tensor cores.
    persistent: one block on each multiprocessor works on tile after tile.
    dynamic_queue: persistent blocks take their next tile from a queue in global memory, else every
        so-many-th tile is theirs.
    overlap_tiles: persistent blocks run a tile's last P V with the next tile's first Q K^T.
    heads_per_group: tiles go, longest first, through so many heads at a time; 0: head by head.
    cluster_size: thread blocks that work on neighbouring blocks of Q and load K and V together, by
        multicast; 1: each on its own.
    lazy_rescale_log2: O is rescaled only where a row's maximum has grown by more than a factor
        2^this; 0: at every block.
    stale_maximum: look for a new maximum only where a score exceeds the bound of the lazy rescale.
    fma_exponentials: how many of 16 exponentials are polynomials on the FMA units.
    tma_store: O leaves through shared memory by a bulk copy, else from registers.

    Raises:
        TypeError: a field has the wrong type; names the field.
        ValueError: a field is negative, or zero where that means nothing. What is well formed may
            still be a point that no kernel supports: `problems()` says so.
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

    family: ClassVar[int] = 1
    minimum_gpu: ClassVar[str] = "sm_90a"
    header_folder: ClassVar[str] = "hopper"
    kernel_function: ClassVar[str] = "hopper_forward_kernel"
    static_configuration: ClassVar[str] = "StaticHopperForwardKernelConfig"
    kernel_arguments: ClassVar[str] = "HopperForwardKernelArgs"
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
    )
    may_be_zero: ClassVar[frozenset[str]] = frozenset(
        ("Q_steps_in_registers", "heads_per_group", "lazy_rescale_log2", "fma_exponentials")
    )

    def problems(self, gpu: str = "sm_90a") -> list[str]:
        return find_hopper_problems(self, gpu)

    def for_dtype(self, dtype: DType) -> HopperForwardKernelConfig:
        """The same tiles for another element type; FP16 has less room for a stale maximum."""
        lead = max_lead_log2(dtype, stale_maximum=self.stale_maximum)
        return replace(self, dtype=dtype, lazy_rescale_log2=min(self.lazy_rescale_log2, lead))

    @property
    def threads_per_block(self) -> int:
        return (self.n_warpgroups + 1) * WARPGROUP_SIZE

    @property
    def shared_memory_bytes(self) -> int:
        """Tiles of Q, K and V, columns of O on their way out, queue entries and barriers."""
        staged_columns = min(self.d_head, _STAGED_COLUMNS) if self.tma_store else 0
        elements = self.B_r * (self.d_head + staged_columns)
        elements += self.B_c * 2 * self.n_stages * self.d_head
        n_barriers = 2 * self.n_warpgroups + 4 * self.n_stages + 2
        return elements * ELEMENT_BYTES + _QUEUE_BYTES + n_barriers * _BARRIER_BYTES

    @property
    def workspace_bytes(self) -> int:
        """The queue's next tile, and how many blocks have found it empty."""
        return 8 if self.dynamic_queue else 0
