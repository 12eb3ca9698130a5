"""Legality of the forward kernels of the sm90 family.

Each rule of legality has a twin in the C++ templates: a static_assert with a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flashsmith.configs.sm90.hardware import (
    CONSUMER_REGISTERS,
    MAX_WGMMA_N,
    TILE_ALIGNMENT_BYTES,
    WGMMA_M,
)
from flashsmith.configs.workload import D_HEADS
from flashsmith.dtype import DType

if TYPE_CHECKING:
    from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig

SUPPORTED_D_HEADS = D_HEADS
MAX_STAGES = 8
MAX_CLUSTER = 2
MAX_LAZY_LOG2 = 8  # FP16 represents up to 2^16
MAX_FP16_LEAD_LOG2 = 4  # and down to 2^-14 without loss
OTHER_REGISTERS = 24  # min registers for addresses, statistics and temporaries
TO_TRANSPOSE = 8  # registers that a consumer's thread gives up if the producer transposes V


def max_lead_log2(dtype: DType, *, stale_maximum: bool) -> int:
    """Returns the largest lazy_rescale_log2 at which an element type loses no precision."""
    if stale_maximum and dtype == DType.FP16:
        return MAX_FP16_LEAD_LOG2
    return MAX_LAZY_LOG2


def tile_problems(config: Sm90ForwardKernelConfig) -> Iterator[str]:
    if config.d_head not in SUPPORTED_D_HEADS:
        yield f"d_head is {config.d_head}; supported are {', '.join(map(str, SUPPORTED_D_HEADS))}."
    if config.n_warpgroups not in CONSUMER_REGISTERS:
        maximum = max(CONSUMER_REGISTERS)
        yield f"n_warpgroups is {config.n_warpgroups}; supported are 1 to {maximum}."
    if config.B_r != WGMMA_M * config.n_warpgroups:
        yield (
            f"B_r is {config.B_r}; each of the {config.n_warpgroups} warpgroups works on the "
            f"{WGMMA_M} rows of a wgmma, so it must be {WGMMA_M * config.n_warpgroups}."
        )
    if config.Q_steps_in_registers > config.QK_steps:
        yield (
            f"Q_steps_in_registers is {config.Q_steps_in_registers}; with d_head {config.d_head} "
            f"Q K^T has {config.QK_steps}."
        )
    multiple = config.key_multiple
    if config.B_c % multiple != 0 or config.B_c > MAX_WGMMA_N:
        yield f"B_c is {config.B_c}; it must be a multiple of {multiple} up to {MAX_WGMMA_N}."
    elif config.B_c * config.d_head * config.score_bytes % TILE_ALIGNMENT_BYTES != 0:
        n_bytes = config.B_c * config.d_head * config.score_bytes
        yield (
            f"{config.B_c} rows of K take {n_bytes} bytes; swizzled tiles are multiples of "
            f"{TILE_ALIGNMENT_BYTES}."
        )


def schedule_problems(config: Sm90ForwardKernelConfig) -> Iterator[str]:
    if config.n_stages > MAX_STAGES:
        yield f"n_stages is {config.n_stages}; at most {MAX_STAGES} are supported."
    if config.overlap_softmax and config.n_stages < 2:
        yield "overlap_softmax needs the next block's K beside this one's V, that is 2 stages."
    if config.ping_pong and config.n_warpgroups < 2:
        yield "ping_pong needs warpgroups that take turns, but n_warpgroups is 1."
    if config.skip_unseen and not config.overlap_softmax:
        yield "skip_unseen needs overlap_softmax, whose step has a copy for half of P."
    if config.skip_unseen and config.B_c <= config.key_multiple:
        yield f"skip_unseen needs B_c of two steps of P V at least; {config.B_c} is one."
    if config.packed_heads and config.fp8_scores:
        yield "packed_heads needs 16-bit tensors, but fp8_scores is on."
    if config.dynamic_queue and not config.persistent:
        yield "dynamic_queue needs persistent blocks, which alone ask for further tiles."
    if config.overlap_tiles and not (config.persistent and config.overlap_softmax):
        yield "overlap_tiles needs persistent blocks and overlap_softmax."
    if config.cluster_size > MAX_CLUSTER:
        yield f"cluster_size is {config.cluster_size}; supported are 1 to {MAX_CLUSTER}."
    if config.cluster_size > 1 and config.dynamic_queue:
        yield "dynamic_queue hands out tiles one by one; the blocks of a cluster need neighbours."


def softmax_problems(config: Sm90ForwardKernelConfig) -> Iterator[str]:
    if config.lazy_rescale_log2 > MAX_LAZY_LOG2:
        yield (
            f"lazy_rescale_log2 is {config.lazy_rescale_log2}; at most {MAX_LAZY_LOG2} keeps P far "
            "from overflow in FP16."
        )
    if config.stale_maximum and config.lazy_rescale_log2 == 0:
        yield "stale_maximum needs room for growth, but lazy_rescale_log2 is 0."
    lead = max_lead_log2(config.dtype, stale_maximum=config.stale_maximum)
    if lead < config.lazy_rescale_log2 <= MAX_LAZY_LOG2:
        yield (
            f"lazy_rescale_log2 is {config.lazy_rescale_log2}; with stale_maximum P is smaller by "
            f"2^that, and FP16 loses small weights beyond {lead}."
        )
    if config.stale_maximum and config.fma_exponentials > 0:
        yield (
            f"fma_exponentials is {config.fma_exponentials}; with stale_maximum there are no "
            "registers for polynomials (ptxas would serialise wgmma, C7511)."
        )
    if config.fma_exponentials > 16:
        yield f"fma_exponentials is {config.fma_exponentials} of 16; at most all of them can be."


def register_problems(config: Sm90ForwardKernelConfig) -> Iterator[str]:
    if config.n_warpgroups not in CONSUMER_REGISTERS:
        return
    registers = config.held_registers | {"other": OTHER_REGISTERS}
    needed = sum(registers.values())
    available = CONSUMER_REGISTERS[config.n_warpgroups]
    if config.fp8_values and config.n_warpgroups > 1:
        available -= TO_TRANSPOSE
    if needed > available:
        listed = " + ".join(f"{n} ({what})" for what, n in registers.items() if n)
        yield (
            f"A consumer's thread needs {needed} registers, {listed}; with {config.n_warpgroups} "
            f"consumer warpgroups it has {available}."
        )
