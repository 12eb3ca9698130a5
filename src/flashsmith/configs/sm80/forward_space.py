"""The declared sets of the sm80 forward: to show step by step, to tune over, and by rule."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

from flashsmith.configs.dtype import DType
from flashsmith.configs.names import parse_kernel_name_into_config
from flashsmith.configs.sm80.forward import FlashForwardKernelConfig

# One optimization a step, in this order.
_PROGRESSION = (
    "async+load_0_0_0_tiles",
    "async+swizzled+load_0_0_0_tiles",
    "async+eager+swizzled+load_0_0_0_tiles",
    "async+eager+swizzled+load_2_2_2_tiles",
    "async+eager+swizzled+load_2_2_2_tiles+buffer",
    "async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
    "async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
)
_PROGRESSION_D_HEAD = 128


def should_autotune_config(cfg: FlashForwardKernelConfig) -> bool:
    """Whether a configuration is worth a place in the tuning space."""
    if cfg.eager_load_blocks and not cfg.async_copy:
        return False  # an early load would hold the block in registers
    if cfg.Q_mma_load_K_tiles not in (0, cfg.K_mma_load_K_tiles):
        return False  # Q and K feed the same mma
    if cfg.B_r == 64:
        if cfg.n_warps == 8:
            return False  # 8 rows a warp; an mma has 16
        if cfg.B_c == 32 and cfg.Q_mma_load_K_tiles == 0:
            return False  # registers: fewer blocks fit on an SM
        if cfg.B_c == 64 and cfg.Q_mma_load_K_tiles != 0:
            return False  # there is room to hold Q
    # With twice the rows a warp, Q no longer fits beside the accumulators.
    return not (cfg.B_r == 128 and cfg.Q_mma_load_K_tiles == 0)


def get_autotuning_kernel_configs(
    dtypes: Iterable[DType] = tuple(DType), d_heads: Iterable[int] = (128,)
) -> list[FlashForwardKernelConfig]:
    """The tuning space, sorted: 40 configurations for each dtype and head dimension."""
    both = (False, True)
    space: Iterable[tuple[Any, ...]] = product(
        dtypes,
        d_heads,
        (64, 128),  # B_r
        (32, 64),  # B_c
        (4,),  # n_warps
        (True,),  # async_copy
        (True,),  # eager_load_blocks
        (True,),  # swizzled
        (0, 2),  # Q_mma_load_K_tiles
        (0, 2),  # K_mma_load_K_tiles
        (0, 2),  # V_mma_load_K_tiles
        both,  # mma_double_buffer_loads
        both,  # optimized_softmax
    )
    configs = {FlashForwardKernelConfig(*point) for point in space}
    return sorted(filter(should_autotune_config, configs))


def get_kernel_progression_configs(
    all_block_sizes: bool = False,
) -> list[FlashForwardKernelConfig]:
    """The seven steps from the plainest kernel to the best, in that order, FP16 and d_head 128.

    At (B_r, B_c, n_warps) = (64, 64, 4), or at each of the 8 legal choices among {128, 64} x
    {128, 64, 32} x {4, 8}, all steps of one choice after those of the other.
    """
    blocks: Iterable[tuple[int, int, int]] = [(64, 64, 4)]
    if all_block_sizes:
        blocks = product((128, 64), (128, 64, 32), (4, 8))
    names = (
        f"({DType.FP16}, {_PROGRESSION_D_HEAD}, {B_r}, {B_c}, {n_warps}): {features}"
        for B_r, B_c, n_warps in blocks
        for features in _PROGRESSION
    )
    configs = (parse_kernel_name_into_config(name) for name in names)
    return [
        config
        for config in configs
        if isinstance(config, FlashForwardKernelConfig) and not config.problems()
    ]


def rule(dtype: DType, d_head: int, seq_len: int) -> FlashForwardKernelConfig:
    """B_r 128 where the sequence length allows it, else 64; B_c 64; all knobs on.

    A block of 128 rows reads K and V half as often as two of 64, and a warp with 32 rows uses every
    fragment of K and V twice. Measured on the H200, docs/kernels/sm80-forward.md.
    """
    if d_head not in (64, 128):
        raise ValueError(
            f"q has d_head {d_head}; supported are 64 and 128, and on compute capability 9.0 also "
            "96, 192 and 256"
        )
    if seq_len % 64 != 0:
        raise ValueError(
            f"q has sequence length {seq_len}; it must be a multiple of 64 on GPUs other than "
            "compute capability 9.0: pad it"
        )
    large = seq_len % 128 == 0
    tiles = 2 if large else 0
    return FlashForwardKernelConfig(
        dtype=dtype,
        d_head=d_head,
        B_r=128 if large else 64,
        B_c=64,
        n_warps=4,
        async_copy=True,
        eager_load_blocks=True,
        swizzled=True,
        Q_mma_load_K_tiles=tiles,
        K_mma_load_K_tiles=tiles,
        V_mma_load_K_tiles=tiles,
        mma_double_buffer_loads=True,
        optimized_softmax=True,
    )
