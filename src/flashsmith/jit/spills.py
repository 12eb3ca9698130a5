"""Which kernels may spill registers, and how much. The build warns of any other spill."""

from __future__ import annotations

from flashsmith.configs import KernelId

# (family, operation, d_head, B_r, B_c, warps or warpgroups) -> bytes that kernels of these tiles
# may spill, on any architecture, with any compiler of tools/build/compilers.py.
ALLOWED_SPILL_BYTES: dict[tuple[str, str, int, int, int, int], int] = {
    # The accumulators of S and O take 192 of 255 registers. What else is live at the peak spills a
    # few values, and the kernels are the fastest of all nonetheless; with all of Q held in
    # registers too (no tuning configuration asks for that) it is 64 more than there are.
    ("sm80", "forward", 128, 128, 64, 4): 1088,
    # Q held in registers beside 160 accumulators: only in the progression over all tiles.
    ("sm80", "forward", 128, 128, 32, 4): 192,
    # A few values, to keep one more block resident; measured faster than without.
    ("sm80", "forward", 64, 64, 32, 4): 16,
    ("sm80", "forward", 64, 64, 64, 4): 64,
    ("sm80", "forward", 128, 64, 32, 4): 16,
    ("sm80", "forward", 128, 64, 64, 4): 128,
    ("sm80", "forward", 128, 64, 128, 4): 128,
    ("sm80", "forward", 128, 128, 32, 8): 16,
    # All of Q in registers beside 160 accumulators: faster than to read it again for every block.
    ("sm80", "forward", 256, 64, 64, 4): 128,
    # The backward with one stage: nvcc 13.0 spills nothing, 13.5 and 12.8 a few values of 255.
    ("sm80", "backward", 64, 128, 64, 4): 56,
    # One register of 168, which nvcc 13.5 alone spills.
    ("sm90", "backward", 128, 64, 128, 2): 4,
    # Decode, on sm_80 alone: a few values that the loop over keys does not need; and rows of 256
    # numbers of 8 bits, which become 16 by moving bits there.
    ("sm80", "decode", 128, 64, 32, 8): 16,
    ("sm80", "decode", 256, 16, 32, 2): 336,
    ("sm80", "decode", 256, 32, 32, 4): 48,
    # One register, which nvcc 13.5 alone spills, and on sm_120 alone.
    ("sm80", "decode", 128, 32, 16, 8): 4,
    # Addresses and counts of a work tile, beside a row of 256 sums in registers: six loads in the
    # 2700 instructions of the loop over keys.
    ("sm90", "decode", 256, 128, 64, 2): 96,
    # Decode of 8 bits, and decode that calls functions: less than one load in a hundred
    # instructions of the loop over keys.
    ("sm80", "decode", 256, 64, 32, 4): 32,
    ("sm80", "decode", 128, 64, 64, 8): 56,
    ("sm80", "decode", 96, 64, 64, 8): 32,
    ("sm80", "decode", 128, 32, 32, 8): 64,
}


def allowed_spill_bytes(instance: KernelId) -> int:
    """Bytes of spill stores or loads that ptxas may report for this kernel; 0 for most."""
    config = instance.config
    n_warps = getattr(config, config.tuple_fields[-1])
    tiles = (config.family, config.kernels_name(), config.d_head, config.B_r, config.B_c, n_warps)
    return ALLOWED_SPILL_BYTES.get(tiles, 0)
