"""Decode of the sm90 family: its configuration, and which can be built.

Each rule of legality has a twin in the C++ templates: a static_assert with a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from flashsmith.configs.base import DecodeKernelConfig
from flashsmith.configs.features import Feature, flag, number
from flashsmith.configs.sm90.forward import WGMMA, Sm90ForwardKernelConfig
from flashsmith.configs.sm90.forward_legality import MAX_LAZY_LOG2
from flashsmith.configs.variant import PAGE_ROWS, Variant
from flashsmith.dtype import DType

DECODE = "decode"  # every short form has this feature and WGMMA
MAX_WARPGROUPS = 2
# The steps of Q K^T that take Q from registers, by d_head; 0 for others. Where rows have 256
# elements, products wait for shared memory.
_Q_REGISTER_STEPS = {256: 4}


@dataclass(frozen=True, order=True)
class Sm90DecodeKernelConfig(DecodeKernelConfig):
    """Decode's configuration: one point of the space, with the fields of the C++ struct of the same
    name.

    A thread block has a producer warpgroup, which loads, and consumer warpgroups, which compute. It
    computes B_r rows of Q, of the heads that share a head of the KV cache, over a split of the
    keys.

    dtype: element type of all tensors; sums are FP32.
    d_head: head dimension, 64, 96, 128, 192 or 256.
    B_r: rows of Q that a thread block works on, packed from queries and heads: 64 for each consumer
        warpgroup.
    B_c: keys and values of a stage.
    n_warpgroups: consumer warpgroups, 1 or 2.
    n_stages: blocks of K, and of V, in shared memory at a time.
    ping_pong: the consumer warpgroups use the tensor cores in turn.

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
    ping_pong: bool = False

    page_multiple: ClassVar[int] = PAGE_ROWS

    family: ClassVar[str] = "sm90"
    minimum_gpu: ClassVar[str] = "sm_90a"
    exact_arch: ClassVar[bool] = True
    max_combined_splits: ClassVar[int] = 2
    max_waiting_splits: ClassVar[int] = 32
    reads_by_maps: ClassVar[bool] = True
    is_set_of_kernels: ClassVar[bool] = True  # with the kernel that appends keys to a cache
    kernel_function: ClassVar[str] = "sm90::decode_kernels"
    static_configuration: ClassVar[str] = "sm90::DecodeTraits"
    kernel_arguments: ClassVar[str] = "Sm90DecodeKernelArgs"
    kernel_header: ClassVar[str] = "flashsmith/sm90/decode_arguments.cuh"
    kernel_pointer: ClassVar[str] = "Sm90DecodeKernels"
    markers: ClassVar[frozenset[str]] = frozenset({WGMMA, DECODE})
    tuple_fields: ClassVar[tuple[str, ...]] = ("dtype", "d_head", "B_r", "B_c", "n_warpgroups")
    feature_table: ClassVar[tuple[Feature, ...]] = (
        Feature(WGMMA),
        Feature(DECODE),
        number("stages", "n_stages"),
        flag("ping_pong", "ping_pong"),
    )
    may_be_zero: ClassVar[frozenset[str]] = frozenset()

    def problems(self, gpu: str = "sm_90a") -> list[str]:
        return [*_warpgroup_problems(self), *self._tiles.problems(gpu)]

    def served_of(self, variant: Variant) -> Variant:
        """Returns the variant without a window, which may cut blocks of keys whose other rows may
        hold anything."""
        return replace(super().served_of(variant), window=False)

    @property
    def tensor_core_rate(self) -> float:
        """One warpgroup has nobody whose products run beside its softmax: 64 rows of 128 elements
        take 0.75 of the time of 128."""
        return 0.93 if self.n_warpgroups > 1 else 0.62

    @property
    def threads_per_block(self) -> int:
        return self._tiles.threads_per_block

    @property
    def shared_memory_parts(self) -> dict[str, int]:
        return self._tiles.shared_memory_parts

    @property
    def held_registers(self) -> dict[str, int]:
        return self._tiles.held_registers

    @property
    def moved_registers(self) -> tuple[int, int] | None:
        return self._tiles.moved_registers

    @property
    def _tiles(self) -> Sm90ForwardKernelConfig:
        """The forward configuration whose tiles these kernels use."""
        return Sm90ForwardKernelConfig(
            self.dtype, self.d_head, self.B_r, self.B_c, self.n_warpgroups, self.n_stages,
            Q_steps_in_registers=_Q_REGISTER_STEPS.get(self.d_head, 0),
            overlap_softmax=True, ping_pong=self.ping_pong,
            persistent=True, dynamic_queue=False, overlap_tiles=False, heads_per_group=0,
            cluster_size=1, lazy_rescale_log2=MAX_LAZY_LOG2, stale_maximum=False,
            fma_exponentials=0, tma_store=False,
        )  # fmt: skip


def _warpgroup_problems(config: Sm90DecodeKernelConfig) -> Iterator[str]:
    if config.n_warpgroups > MAX_WARPGROUPS:
        yield f"n_warpgroups is {config.n_warpgroups}; supported are 1 to {MAX_WARPGROUPS}."
