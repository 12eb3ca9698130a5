"""The kernels that may spill registers, and how much. The build warns of any other spill."""

from __future__ import annotations

from flashsmith.configs import KernelId

# The keys are (family, operation, d_head, B_r, B_c, warps or warpgroups), the values the bytes that
# kernels with these tiles may spill on any architecture, with any compiler of
# tools/build/compilers.py.
ALLOWED_SPILL_BYTES: dict[tuple[str, str, int, int, int, int], int] = {
    # The accumulators of S and O take 192 of 255 registers. Other live values at the peak spill a
    # few, and the kernels are still the fastest of all; with all of Q in registers too (no tuning
    # configuration does that) they need 64 more registers than there are.
    ("sm80", "forward", 128, 128, 64, 4): 1088,
    # Q in registers beside 160 accumulators occurs only in the progression over all tiles.
    ("sm80", "forward", 128, 128, 32, 4): 192,
    # A few values spill to keep one more block resident; this was measured to be faster.
    ("sm80", "forward", 64, 64, 32, 4): 16,
    ("sm80", "forward", 64, 64, 64, 4): 64,
    ("sm80", "forward", 128, 64, 32, 4): 16,
    ("sm80", "forward", 128, 64, 64, 4): 128,
    ("sm80", "forward", 128, 64, 128, 4): 128,
    ("sm80", "forward", 128, 128, 32, 8): 16,
    # With all of Q in registers beside 160 accumulators, spilling is faster than reading Q again
    # for every block.
    ("sm80", "forward", 256, 64, 64, 4): 128,
    # The backward with one stage: nvcc 13.0 spills nothing, 13.5 and 12.8 spill a few values, with
    # 255 registers.
    ("sm80", "backward", 64, 128, 64, 4): 56,
    # The warp that converts dQ and clears its sums has 24 or 32 registers. What spills is not
    # needed in its inner loops, over the rows of a block and the copies of a slice.
    ("sm90", "backward", 64, 64, 128, 2): 144,
    ("sm90", "backward", 64, 64, 192, 3): 112,
    ("sm90", "backward", 96, 64, 128, 2): 200,
    ("sm90", "backward", 128, 64, 128, 2): 200,
    ("sm90", "backward", 192, 64, 96, 3): 112,
    # Decode on sm_80 alone spills a few values that the loop over keys does not need; so do rows of
    # 256 FP8 numbers, which are converted to 16 bits by bit operations there.
    ("sm80", "decode", 128, 64, 32, 8): 16,
    ("sm80", "decode", 256, 16, 32, 2): 336,
    ("sm80", "decode", 256, 32, 32, 4): 48,
    # A value of the schedule, which the loop over keys does not need.
    ("sm80", "decode", 128, 16, 32, 2): 4,
    # One register spills, with nvcc 13.5 on sm_120 alone.
    ("sm80", "decode", 128, 32, 16, 8): 4,
    # Where rows have many sums in registers, what stream-K needs to find a block's next split
    # spills, outside of the loop over keys. ALiBi spills up to 208 with rows of 256 elements, with
    # three to six loads in the loop: the build warns of that.
    ("sm90", "decode", 128, 128, 128, 2): 28,
    ("sm90", "decode", 192, 128, 64, 2): 104,
    ("sm90", "decode", 192, 128, 96, 2): 104,
    ("sm90", "decode", 256, 64, 64, 1): 104,
    ("sm90", "decode", 256, 128, 64, 2): 168,
    # FP8 decode, and decode that calls functions, spill less than one load in a hundred
    # instructions of the loop over keys.
    ("sm80", "decode", 256, 64, 32, 4): 32,
    ("sm80", "decode", 128, 64, 64, 8): 56,
    ("sm80", "decode", 96, 64, 64, 8): 32,
    ("sm80", "decode", 128, 32, 32, 8): 64,
}


def allowed_spill_bytes(instance: KernelId) -> int:
    """Returns the bytes of spill stores or loads that ptxas may report for this kernel; mostly
    0."""
    config = instance.config
    n_warps = getattr(config, config.tuple_fields[-1])
    tiles = (config.family, config.kernels_name(), config.d_head, config.B_r, config.B_c, n_warps)
    return ALLOWED_SPILL_BYTES.get(tiles, 0)
