"""Which kernels may spill registers, and how much. Any other spill fails the build."""

from __future__ import annotations

from flashsmith.configs import FlashForwardKernelConfig

# (d_head, B_r, B_c, n_warps) -> bytes that kernels of these tiles may spill, with the reason.
ALLOWED_SPILL_BYTES: dict[tuple[int, int, int, int], int] = {}


def allowed_spill_bytes(config: FlashForwardKernelConfig) -> int:
    """Bytes of spill stores or loads that ptxas may report for this kernel; 0 for most."""
    return ALLOWED_SPILL_BYTES.get((config.d_head, config.B_r, config.B_c, config.n_warps), 0)
