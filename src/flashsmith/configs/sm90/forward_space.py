"""The declared sets of the sm90 family's forward: the progression and the tuning space."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import NamedTuple, cast

from flashsmith.configs.legality import tiles_of
from flashsmith.configs.names import parse_kernel_name_into_config
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.configs.sm90.forward_legality import SUPPORTED_D_HEADS, max_lead_log2
from flashsmith.configs.sm90.hardware import WGMMA_M
from flashsmith.dtype import DType
from flashsmith.gpus import get_gpu_architecture

# Each step adds one idea, in this order.
_PROGRESSION = (
    "wgmma+stages_2",
    "wgmma+stages_2+overlap",
    "wgmma+stages_2+q_regs_8+overlap",
    "wgmma+stages_2+q_regs_8+overlap+lazy_8",
    "wgmma+stages_2+q_regs_8+overlap+lazy_8+stale",
    "wgmma+stages_2+q_regs_8+overlap+persistent+tiles+lazy_8+stale",
    "wgmma+stages_2+q_regs_8+overlap+persistent+tiles+lazy_8+stale+tma_store",
    "wgmma+stages_2+q_regs_8+overlap+persistent+queue+tiles+heads_16+lazy_8+stale+tma_store",
)
_PROGRESSION_TILES = f"({DType.BF16}, 128, 128, 128, 2)"  # lazy_8 with stale needs BF16's exponents


class Sm90Tiles(NamedTuple):
    """The fields of a configuration that decide its registers and shared memory."""

    n_warpgroups: int
    B_c: int
    n_stages: int
    Q_steps_in_registers: int
    ping_pong: bool
    overlap_softmax: bool = True
    overlap_tiles: bool = True  # if softmax overlaps
    ping_pong_until_exp: bool = False


# These tiles were the fastest of each d_head for some shape, or close (docs/log/sm90-forward.md).
_TUNING_TILES = {
    64: (
        Sm90Tiles(4, 64, 6, Q_steps_in_registers=0, ping_pong=True),
        Sm90Tiles(4, 64, 6, Q_steps_in_registers=0, ping_pong=True, overlap_tiles=False),
        Sm90Tiles(4, 64, 6, Q_steps_in_registers=0, ping_pong=False),
        Sm90Tiles(4, 64, 4, Q_steps_in_registers=4, ping_pong=False, overlap_softmax=False),
        Sm90Tiles(3, 128, 2, Q_steps_in_registers=0, ping_pong=True),
        Sm90Tiles(2, 128, 2, Q_steps_in_registers=0, ping_pong=True),
    ),
    96: (
        Sm90Tiles(2, 128, 2, Q_steps_in_registers=6, ping_pong=False),
        Sm90Tiles(3, 64, 3, Q_steps_in_registers=0, ping_pong=True),
        Sm90Tiles(3, 96, 2, Q_steps_in_registers=0, ping_pong=True),
        Sm90Tiles(3, 96, 2, Q_steps_in_registers=0, ping_pong=True, overlap_tiles=False),
    ),
    128: (
        Sm90Tiles(2, 64, 4, Q_steps_in_registers=8, ping_pong=False),
        Sm90Tiles(2, 128, 2, Q_steps_in_registers=8, ping_pong=False),
        Sm90Tiles(2, 128, 2, Q_steps_in_registers=8, ping_pong=True),
        Sm90Tiles(3, 64, 2, Q_steps_in_registers=4, ping_pong=True, overlap_tiles=False),
        Sm90Tiles(3, 80, 2, Q_steps_in_registers=1, ping_pong=True),
    ),
    192: (
        Sm90Tiles(2, 64, 2, Q_steps_in_registers=4, ping_pong=False),
        Sm90Tiles(2, 64, 2, Q_steps_in_registers=4, ping_pong=True, overlap_tiles=False),
        Sm90Tiles(2, 80, 2, Q_steps_in_registers=4, ping_pong=False),
        Sm90Tiles(2, 96, 2, Q_steps_in_registers=4, ping_pong=False),
    ),
    256: (
        Sm90Tiles(2, 64, 2, Q_steps_in_registers=4, ping_pong=False),
        Sm90Tiles(2, 64, 2, Q_steps_in_registers=4, ping_pong=True),
        Sm90Tiles(2, 64, 2, Q_steps_in_registers=4, ping_pong=True, overlap_tiles=False),
        Sm90Tiles(2, 64, 2, Q_steps_in_registers=8, ping_pong=True, overlap_tiles=False),
    ),
}
# These tiles were the fastest, or close, for grids that do not fill the GPU, with a block for each
# tile. The heuristic takes the first.
_SMALL_TILES = {
    64: (
        Sm90Tiles(1, 64, 2, Q_steps_in_registers=0, ping_pong=False),
        Sm90Tiles(1, 128, 2, Q_steps_in_registers=0, ping_pong=False),
        Sm90Tiles(2, 128, 2, Q_steps_in_registers=0, ping_pong=True),
    ),
    96: (
        Sm90Tiles(1, 64, 2, Q_steps_in_registers=0, ping_pong=False),
        Sm90Tiles(1, 128, 2, Q_steps_in_registers=0, ping_pong=False),
        Sm90Tiles(2, 128, 2, Q_steps_in_registers=6, ping_pong=False),
    ),
    128: (
        Sm90Tiles(1, 64, 2, Q_steps_in_registers=0, ping_pong=False),
        Sm90Tiles(1, 128, 2, Q_steps_in_registers=0, ping_pong=False),
        Sm90Tiles(2, 128, 2, Q_steps_in_registers=8, ping_pong=True),
    ),
    192: (
        Sm90Tiles(1, 64, 2, Q_steps_in_registers=0, ping_pong=False),
        Sm90Tiles(1, 96, 2, Q_steps_in_registers=0, ping_pong=False),
        Sm90Tiles(2, 96, 2, Q_steps_in_registers=4, ping_pong=False),
    ),
    256: (
        Sm90Tiles(1, 64, 2, Q_steps_in_registers=0, ping_pong=False),
        Sm90Tiles(2, 64, 2, Q_steps_in_registers=4, ping_pong=False),
    ),
}
_HEADS_PER_GROUP = (0, 16, 32, 64)
_HEADS_PER_SMALL_GROUP = (0, 16)

# These tiles serve middling lengths well for each d_head.
_HEURISTIC_TILES = {
    64: Sm90Tiles(4, 64, 4, Q_steps_in_registers=0, ping_pong=True),
    96: Sm90Tiles(2, 128, 2, Q_steps_in_registers=6, ping_pong=False),
    128: Sm90Tiles(2, 128, 2, Q_steps_in_registers=8, ping_pong=True),
    192: Sm90Tiles(2, 96, 2, Q_steps_in_registers=4, ping_pong=False),
    256: Sm90Tiles(2, 64, 2, Q_steps_in_registers=4, ping_pong=False),
}


def make_sm90_config(
    dtype: DType,
    d_head: int,
    tiles: Sm90Tiles,
    *,
    heads_per_group: int = 0,
    stale_maximum: bool,
    persistent: bool = True,
) -> Sm90ForwardKernelConfig:
    """Returns a configuration with the options that help every shape: as lazy a rescale as the
    dtype allows, bulk stores if there is room for them, and a queue for persistent blocks."""
    config = Sm90ForwardKernelConfig(
        dtype=dtype,
        d_head=d_head,
        B_r=WGMMA_M * tiles.n_warpgroups,
        B_c=tiles.B_c,
        n_warpgroups=tiles.n_warpgroups,
        n_stages=tiles.n_stages,
        Q_steps_in_registers=tiles.Q_steps_in_registers,
        overlap_softmax=tiles.overlap_softmax,
        ping_pong=tiles.ping_pong,
        persistent=persistent,
        dynamic_queue=persistent,
        overlap_tiles=persistent and tiles.overlap_softmax and tiles.overlap_tiles,
        heads_per_group=heads_per_group,
        cluster_size=1,
        lazy_rescale_log2=max_lead_log2(dtype, stale_maximum=stale_maximum),
        stale_maximum=stale_maximum,
        fma_exponentials=0,
        tma_store=True,
        ping_pong_until_exp=tiles.ping_pong_until_exp,
    )
    architecture = get_gpu_architecture(config.minimum_gpu)
    has_room = config.shared_memory_bytes <= architecture.max_shared_memory_per_block_bytes
    return config if has_room else replace(config, tma_store=False)


def get_sm90_kernel_progression_configs() -> list[Sm90ForwardKernelConfig]:
    """Returns the steps from the plainest wgmma kernel to the best, for BF16 and d_head 128."""
    names = (f"{_PROGRESSION_TILES}: {features}" for features in _PROGRESSION)
    configs = [parse_kernel_name_into_config(name) for name in names]
    return cast("list[Sm90ForwardKernelConfig]", configs)


def get_sm90_autotuning_kernel_configs(
    dtypes: Iterable[DType] = tuple(DType), d_heads: Iterable[int] = SUPPORTED_D_HEADS
) -> list[Sm90ForwardKernelConfig]:
    """Returns the tuning space of the sm90 family, sorted: at most 60 points for each dtype and
    d_head.

    Raises:
        ValueError: The family does not support a d_head.
    """
    dtypes, d_heads = tuple(dtypes), tuple(d_heads)
    if unknown := [d_head for d_head in d_heads if d_head not in SUPPORTED_D_HEADS]:
        supported = ", ".join(map(str, SUPPORTED_D_HEADS))
        raise ValueError(f"d_head {unknown[0]} is not known; supported: {supported}")
    configs = {
        make_sm90_config(dtype, d_head, tiles, heads_per_group=heads, stale_maximum=stale)
        for dtype, d_head in product(dtypes, d_heads)
        for tiles in _TUNING_TILES[d_head]
        for heads, stale in product(_HEADS_PER_GROUP, (False, True))
    } | {
        make_sm90_config(
            dtype, d_head, tiles, heads_per_group=heads, stale_maximum=stale, persistent=False
        )
        for dtype, d_head in product(dtypes, d_heads)
        for tiles in _SMALL_TILES[d_head]
        for heads, stale in product(_HEADS_PER_SMALL_GROUP, (False, True))
    }
    return sorted(configs)


def heuristic(dtype: DType, d_head: int, n_keys: int) -> Sm90ForwardKernelConfig:
    """Returns the tiles of a d_head for a full GPU.

    They were measured on the H200, docs/log/sm90-forward.md.

    Raises:
        ValueError: The family does not support d_head. Every ``n_keys`` is supported.
    """
    tiles = tiles_of(_HEURISTIC_TILES, d_head)
    return make_sm90_config(dtype, d_head, tiles, heads_per_group=16, stale_maximum=True)


def small_tiles(dtype: DType, d_head: int) -> list[Sm90ForwardKernelConfig]:
    """Returns the alternative if the heuristic's tiles are too few: tiles of one warpgroup, with
    causal tiles in order, longest first."""
    tiles = _SMALL_TILES[d_head][0]
    return [
        make_sm90_config(
            dtype, d_head, tiles, heads_per_group=16, stale_maximum=True, persistent=False
        )
    ]
