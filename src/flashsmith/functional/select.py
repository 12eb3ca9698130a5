"""Which configuration ``attention`` takes when the caller names none."""

from __future__ import annotations

import torch

from flashsmith.configs import DType, FlashForwardKernelConfig

_DTYPES = {torch.float16: DType.FP16, torch.bfloat16: DType.BF16}


def select_config(q: torch.Tensor) -> FlashForwardKernelConfig:
    """The rule: B_r 128 where the sequence length allows it, else 64; B_c 64; all knobs on.

    A block of 128 rows reads K and V half as often as two of 64, and a warp with 32 rows uses every
    fragment of K and V twice. Measured on the H200, docs/kernels/sm80-forward.md.

    Args:
        q: (batch, seq_len, n_heads, d_head), float16 or bfloat16.

    Raises:
        TypeError: The dtype is another one.
        ValueError: q has not 4 dimensions, d_head is not 64 or 128, or seq_len is not a multiple
            of 64.
    """
    if q.dtype not in _DTYPES:
        raise TypeError(f"q has dtype {q.dtype}; supported are torch.float16 and torch.bfloat16")
    if q.ndim != 4:
        raise ValueError(
            f"q has {q.ndim} dimensions; expected 4: (batch, seq_len, n_heads, d_head)"
        )
    seq_len, d_head = q.shape[1], q.shape[3]
    if d_head not in (64, 128):
        raise ValueError(f"q has d_head {d_head}; supported are 64 and 128")
    if seq_len % 64 != 0:
        raise ValueError(f"q has sequence length {seq_len}; it must be a multiple of 64: pad it")
    large = seq_len % 128 == 0
    tiles = 2 if large else 0
    return FlashForwardKernelConfig(
        dtype=_DTYPES[q.dtype],
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
