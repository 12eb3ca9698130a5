"""The limits of compute capability 9.0 for all kernels of the sm90 family: of wgmma, of swizzled
tiles, and of registers that warpgroups pass on."""

from __future__ import annotations

COMPUTE_CAPABILITY = (9, 0)  # wgmma exists only there
WGMMA_M = 64  # rows of one wgmma
WGMMA_K = 16  # 16-bit elements that one wgmma sums over
WGMMA_K_BYTES = 32
MAX_WGMMA_N = 256
TILE_ALIGNMENT_BYTES = 1024
# Registers of a thread after setmaxnreg, by the number of consumer warpgroups; with one, none are
# moved.
CONSUMER_REGISTERS = {1: 255, 2: 240, 3: 160, 4: 112}
_PRODUCER_REGISTERS = {2: 24, 3: 32, 4: 32}


def register_split(n_warpgroups: int, given: int = 0) -> tuple[int, int] | None:
    """Returns the registers of a producer's and of a consumer's thread after setmaxnreg; None: none
    are moved.

    given: Registers that each consumer's thread gives up if the producer does more than copy.
    """
    if n_warpgroups not in _PRODUCER_REGISTERS:
        return None
    producer = _PRODUCER_REGISTERS[n_warpgroups] + n_warpgroups * given
    return producer, CONSUMER_REGISTERS[n_warpgroups] - given
