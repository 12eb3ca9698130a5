"""Which kernels can serve a shape, and which does where no table knows it."""

from __future__ import annotations

from flashsmith.configs import (
    DType,
    FlashForwardKernelConfig,
    ForwardKernelConfig,
    HopperForwardKernelConfig,
    HopperTiles,
    make_hopper_config,
)

# Of the sm90 family, by d_head: what serves middling lengths well.
_HOPPER_TILES = {
    64: HopperTiles(4, 64, 4, Q_steps_in_registers=0, ping_pong=True),
    96: HopperTiles(2, 128, 2, Q_steps_in_registers=6, ping_pong=False),
    128: HopperTiles(2, 128, 2, Q_steps_in_registers=8, ping_pong=True),
    192: HopperTiles(2, 96, 2, Q_steps_in_registers=4, ping_pong=False),
    256: HopperTiles(2, 64, 2, Q_steps_in_registers=4, ping_pong=False),
}


def rule_config(
    dtype: DType, d_head: int, seq_len: int, *, hopper: bool = False
) -> ForwardKernelConfig:
    """The rule of a family: of sm90 if ``hopper``, else of sm80.

    Raises:
        ValueError: The family does not take d_head or seq_len.
    """
    if hopper:
        return _hopper_rule(dtype, d_head)
    return _ampere_rule(dtype, d_head, seq_len)


def _ampere_rule(dtype: DType, d_head: int, seq_len: int) -> FlashForwardKernelConfig:
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


def _hopper_rule(dtype: DType, d_head: int) -> HopperForwardKernelConfig:
    """Tiles by d_head alone.

    Measured on the H200, docs/kernels/hopper-forward.md.
    """
    if d_head not in _HOPPER_TILES:
        supported = ", ".join(map(str, _HOPPER_TILES))
        raise ValueError(f"q has d_head {d_head}; supported are {supported}")
    return make_hopper_config(
        dtype, d_head, _HOPPER_TILES[d_head], heads_per_group=16, stale_maximum=True
    )


def describe_rule(config: ForwardKernelConfig) -> str:
    """The rule that chose ``config``, in words."""
    if isinstance(config, HopperForwardKernelConfig):
        return "the rule: one configuration of the sm90 family for each d_head"
    return "the rule: B_r 128 where it divides the length, else 64; B_c 64; all knobs on"


def fits(
    config: ForwardKernelConfig, seq_len: int, *, hopper: bool = True, plain: bool = True
) -> bool:
    """Whether a kernel can serve: the sm90 family takes all that its GPU may be asked.

    Args:
        seq_len: Of k. The blocks of the sm80 family have to divide it.
        hopper: Whether the GPU has compute capability 9.0.
        plain: Whether k is shaped as q, and no log-sum-exp is wanted.
    """
    if isinstance(config, HopperForwardKernelConfig):
        return hopper
    return plain and seq_len % config.B_r == 0 and seq_len % config.B_c == 0
