"""The declared sets of the sm80 forward: the progression, the tuning space and the heuristic."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any, cast

from flashsmith.configs.legality import tiles_of
from flashsmith.configs.names import parse_kernel_name_into_config
from flashsmith.configs.sm80.forward import FlashForwardKernelConfig
from flashsmith.dtype import DType

# Each step adds one optimization, in this order.
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
    """Returns whether a configuration belongs in the tuning space."""
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
    # With twice the rows a warp, Q does not fit beside the accumulators.
    return not (cfg.B_r == 128 and cfg.Q_mma_load_K_tiles == 0)


def get_autotuning_kernel_configs(
    dtypes: Iterable[DType] = tuple(DType), d_heads: Iterable[int] = (128,)
) -> list[FlashForwardKernelConfig]:
    """Returns the tuning space, sorted: 40 configurations for each dtype and d_head up to 128."""
    both = (False, True)
    space: Iterable[tuple[Any, ...]] = product(
        dtypes,
        d_heads,
        (64, 128),  # B_r
        (32, 64),  # B_c
        (4, 8),  # n_warps
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
    return sorted(cfg for cfg in configs if should_autotune_config(cfg) and _is_worth_tuning(cfg))


def _is_worth_tuning(cfg: FlashForwardKernelConfig) -> bool:
    """Returns whether a legal configuration is worth tuning: up to d_head 128 two blocks of four
    warps fit on an SM, and hide each other's barriers."""
    return not cfg.problems() and (cfg.n_warps == 4 or cfg.d_head > 128)


def get_kernel_progression_configs(
    all_block_sizes: bool = False,
) -> list[FlashForwardKernelConfig]:
    """Returns the seven steps from the plainest kernel to the best, for FP16 and d_head 128.

    They are at (B_r, B_c, n_warps) = (64, 64, 4), or at each of the 8 legal choices among {128, 64}
    x {128, 64, 32} x {4, 8}, all steps of one choice before the next.
    """
    blocks: Iterable[tuple[int, int, int]] = [(64, 64, 4)]
    if all_block_sizes:
        blocks = product((128, 64), (128, 64, 32), (4, 8))
    names = (
        f"({DType.FP16}, {_PROGRESSION_D_HEAD}, {B_r}, {B_c}, {n_warps}): {features}"
        for B_r, B_c, n_warps in blocks
        for features in _PROGRESSION
    )
    configs = [parse_kernel_name_into_config(name) for name in names]
    buildable = [config for config in configs if config.is_buildable()]
    return cast("list[FlashForwardKernelConfig]", buildable)


# Each d_head has a tile (B_r, B_c, n_warps), the fragments loaded at a time, and whether the next
# fragments are loaded before the mma. The tile of 256 takes 128 KiB of shared memory, which GPUs
# with 100 KiB an SM do not have: the small tile serves there. All others fit.
_ALL_OF_Q, _TWO_FRAGMENTS = (0, 2, 2), (2, 2, 2)
_HEURISTIC = {
    64: ((128, 64, 4), _TWO_FRAGMENTS, True),
    96: ((128, 64, 4), _TWO_FRAGMENTS, True),
    128: ((128, 64, 4), _TWO_FRAGMENTS, True),
    192: ((64, 64, 4), _ALL_OF_Q, True),
    256: ((128, 64, 8), (2, 2, 0), True),
}
# With half the rows, a third block fits on an SM; this serves if queries see at most this many
# keys. For missing d_heads the heuristic's tile is the smallest.
_SMALL = ((64, 64, 4), (0, 2, 0), False)
_SMALL_UP_TO = {64: 2048, 96: 64, 128: 256, 256: 256}


def heuristic(dtype: DType, d_head: int, n_keys: int) -> FlashForwardKernelConfig:
    """Returns one configuration for each d_head, and one of half the rows if queries see few keys.

    A block of 128 rows reads K and V half as often as two of 64, and a warp with 32 rows uses every
    fragment of K and V twice; from d_head 192 on its accumulators leave no room for that, and at
    256 eight warps share a block. This was measured on the H200, docs/log/sm80-forward.md.
    """
    tiles = tiles_of(_HEURISTIC, d_head)
    is_short = n_keys <= _SMALL_UP_TO.get(d_head, 0)
    return _make_config(dtype, d_head, *(_SMALL if is_short else tiles))


def small_tiles(dtype: DType, d_head: int) -> list[FlashForwardKernelConfig]:
    """Returns the alternative if the heuristic's tiles are too few: half the rows."""
    return [_make_config(dtype, d_head, *_SMALL)] if d_head in _SMALL_UP_TO else []


def _make_config(
    dtype: DType,
    d_head: int,
    tile: tuple[int, int, int],
    fragments: tuple[int, int, int],
    buffer: bool,
) -> FlashForwardKernelConfig:
    (B_r, B_c, n_warps), (Q, K, V) = tile, fragments
    return FlashForwardKernelConfig(
        dtype=dtype,
        d_head=d_head,
        B_r=B_r,
        B_c=B_c,
        n_warps=n_warps,
        async_copy=True,
        eager_load_blocks=True,
        swizzled=True,
        Q_mma_load_K_tiles=Q,
        K_mma_load_K_tiles=K,
        V_mma_load_K_tiles=V,
        mma_double_buffer_loads=buffer,
        optimized_softmax=True,
    )
