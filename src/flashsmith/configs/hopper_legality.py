"""Which configurations of the sm90 family can be built and run, and why not the others.

Each rule has its twin: a static_assert with a sentence in the C++ templates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flashsmith.configs.dtype import DType
from flashsmith.configs.gpu import (
    HOPPER_COMPUTE_CAPABILITY,
    GpuArchitecture,
    get_gpu_architecture,
)

if TYPE_CHECKING:
    from flashsmith.configs.hopper import HopperForwardKernelConfig

WGMMA_M = 64  # rows of one wgmma
WGMMA_K = 16  # elements that one wgmma sums over
MAX_WGMMA_N = 256
MAX_STAGES = 8
MAX_CLUSTER = 2
MAX_LAZY_LOG2 = 8  # FP16 represents up to 2^16
MAX_FP16_LEAD_LOG2 = 4  # and down to 2^-14 without loss

SUPPORTED_D_HEADS = (64, 96, 128, 192, 256)
# Registers of a consumer's thread after setmaxnreg, by the number of consumer warpgroups.
CONSUMER_REGISTERS = {1: 255, 2: 240, 3: 160, 4: 112}
# What addresses, statistics and temporaries take, at least.
OTHER_REGISTERS = 24


def max_lead_log2(dtype: DType, *, stale_maximum: bool) -> int:
    """The largest lazy_rescale_log2 at which an element type loses nothing."""
    if stale_maximum and dtype == DType.FP16:
        return MAX_FP16_LEAD_LOG2
    return MAX_LAZY_LOG2


def find_hopper_problems(config: HopperForwardKernelConfig, gpu: str) -> list[str]:
    """The reasons, one sentence each, why `config` cannot be built or run on `gpu`; none if it can.

    Raises:
        ValueError: `gpu` is not a known architecture.
    """
    architecture = get_gpu_architecture(gpu)
    return [
        *_tile_problems(config),
        *_schedule_problems(config),
        *_softmax_problems(config),
        *_register_problems(config),
        *_gpu_problems(config, architecture),
    ]


def _tile_problems(config: HopperForwardKernelConfig) -> Iterator[str]:
    if config.d_head not in SUPPORTED_D_HEADS:
        yield f"d_head is {config.d_head}; supported are {', '.join(map(str, SUPPORTED_D_HEADS))}."
    if config.n_warpgroups not in CONSUMER_REGISTERS:
        most = max(CONSUMER_REGISTERS)
        yield f"n_warpgroups is {config.n_warpgroups}; supported are 1 to {most}."
    if config.B_r != WGMMA_M * config.n_warpgroups:
        yield (
            f"B_r is {config.B_r}; each of the {config.n_warpgroups} warpgroups works on the "
            f"{WGMMA_M} rows of a wgmma, so it must be {WGMMA_M * config.n_warpgroups}."
        )
    steps = config.d_head // WGMMA_K
    if config.Q_steps_in_registers > steps:
        yield (
            f"Q_steps_in_registers is {config.Q_steps_in_registers}; with d_head {config.d_head} "
            f"Q K^T has {steps}."
        )
    if config.B_c % WGMMA_K != 0 or config.B_c > MAX_WGMMA_N:
        yield f"B_c is {config.B_c}; it must be a multiple of {WGMMA_K} up to {MAX_WGMMA_N}."


def _schedule_problems(config: HopperForwardKernelConfig) -> Iterator[str]:
    if config.n_stages > MAX_STAGES:
        yield f"n_stages is {config.n_stages}; at most {MAX_STAGES} are supported."
    if config.overlap_softmax and config.n_stages < 2:
        yield "overlap_softmax needs the next block's K beside this one's V, that is 2 stages."
    if config.ping_pong and config.n_warpgroups < 2:
        yield "ping_pong needs warpgroups that take turns, but n_warpgroups is 1."
    if config.dynamic_queue and not config.persistent:
        yield "dynamic_queue needs persistent blocks, which alone ask for further tiles."
    if config.overlap_tiles and not (config.persistent and config.overlap_softmax):
        yield "overlap_tiles needs persistent blocks and overlap_softmax."
    if config.cluster_size > MAX_CLUSTER:
        yield f"cluster_size is {config.cluster_size}; supported are 1 to {MAX_CLUSTER}."
    if config.cluster_size > 1 and config.dynamic_queue:
        yield "dynamic_queue hands out tiles one by one; the blocks of a cluster need neighbours."


def _softmax_problems(config: HopperForwardKernelConfig) -> Iterator[str]:
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


def _register_problems(config: HopperForwardKernelConfig) -> Iterator[str]:
    if config.n_warpgroups not in CONSUMER_REGISTERS:
        return
    registers = {
        "O": config.d_head // 2,
        "S": config.B_c // 2,
        # Else S is in registers no longer when P, half as large, takes their place.
        "P": config.B_c // 4 if config.overlap_softmax else 0,
        "Q": 4 * config.Q_steps_in_registers,
        "other": OTHER_REGISTERS,
    }
    needed = sum(registers.values())
    available = CONSUMER_REGISTERS[config.n_warpgroups]
    if needed > available:
        listed = " + ".join(f"{n} ({what})" for what, n in registers.items() if n)
        yield (
            f"A consumer's thread needs {needed} registers, {listed}; with {config.n_warpgroups} "
            f"consumer warpgroups it has {available}."
        )


def _gpu_problems(config: HopperForwardKernelConfig, gpu: GpuArchitecture) -> Iterator[str]:
    if gpu.compute_capability != HOPPER_COMPUTE_CAPABILITY:
        yield (
            f"{gpu.name} has compute capability {'.'.join(map(str, gpu.compute_capability))}; the "
            "instructions of the sm90 family exist on 9.0 alone (sm_90a)."
        )
    if config.shared_memory_bytes > gpu.max_shared_memory_per_block_bytes:
        yield (
            f"The tiles take {config.shared_memory_bytes} bytes of shared memory; a block on "
            f"{gpu.name} has at most {gpu.max_shared_memory_per_block_bytes}."
        )
