"""The kernels of the sm80 family that the tests run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import combinations, product

from flashsmith.configs import (
    CAUSAL,
    FULL,
    DType,
    FlashForwardKernelConfig,
    KernelId,
    get_autotuning_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
    parse_kernel_name_into_config,
)
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.configs.workload import Workload
from support.samples import covering

PROGRESSION = get_kernel_progression_configs()
BASE = PROGRESSION[3]  # async+eager+swizzled+load_2_2_2_tiles
LAST = PROGRESSION[-1]  # optimized softmax, Q in registers
# `attention` chooses these: every d_head and dtype.
HEURISTIC = [
    SM80_FORWARD.heuristic(Workload.square(dtype, d_head, 4096))
    for d_head in SM80_FORWARD.d_heads
    for dtype in DType
]
# These are the ends of the space, and combinations that neither of the others has.
VARIED = [
    parse_kernel_name_into_config(name)
    for name in (
        "(FP16, 128, 64, 64, 4): load_2_2_2_tiles",
        "(BF16, 64, 64, 32, 4): async+load_0_0_0_tiles+opt_softmax",
        "(FP16, 96, 64, 128, 4): async+eager+swizzled+load_2_2_4_tiles",
        "(BF16, 128, 128, 128, 8): async+swizzled+load_0_4_4_tiles+buffer",
        "(FP16, 192, 128, 64, 8): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
        "(BF16, 256, 64, 32, 4): swizzled+load_4_2_2_tiles+opt_softmax",
        "(FP16, 64, 128, 32, 4): eager+load_0_2_0_tiles+buffer",
        "(BF16, 96, 128, 64, 8): async+eager+swizzled+load_0_0_0_tiles+opt_softmax",
    )
]
CONFIGS = list(dict.fromkeys([*PROGRESSION, *HEURISTIC, *VARIED]))
SOME = [PROGRESSION[0], LAST, *(VARIED[i] for i in (0, 1, 2, 3, 4, 5))]

# Each of these is the base with one knob changed.
KNOBS = {
    "synchronous": replace(BASE, async_copy=False),
    "not eager": replace(BASE, eager_load_blocks=False),
    "not swizzled": replace(BASE, swizzled=False),
    "Q whole": replace(BASE, Q_mma_load_K_tiles=0),
    "K whole": replace(BASE, K_mma_load_K_tiles=0),
    "K four": replace(BASE, K_mma_load_K_tiles=4),
    "V whole": replace(BASE, V_mma_load_K_tiles=0),
    "buffer": replace(BASE, mma_double_buffer_loads=True),
    "buffer, K whole": replace(BASE, mma_double_buffer_loads=True, K_mma_load_K_tiles=0),
    "optimized softmax": replace(BASE, optimized_softmax=True),
}
# These have every combination of the knobs that decide a kernel's synchronisation, and other tiles.
SYNCHRONISED = [
    *(
        replace(BASE, async_copy=a, eager_load_blocks=e, Q_mma_load_K_tiles=q, optimized_softmax=s)
        for a, e, q, s in product((False, True), (False, True), (0, 2), (False, True))
    ),
    *VARIED[1:],
]

# These are all configurations of the family's sets: 85 of d_head 128 and 80 of d_head 64.
DECLARED = [*get_kernels_to_build(), *get_autotuning_kernel_configs(d_heads=(64,))]


def _ends_of_each_tile() -> list[FlashForwardKernelConfig]:
    """Returns the progression, and the first and last configuration of every tile, d_head and
    dtype."""
    by_tiles: dict[tuple[object, ...], list[FlashForwardKernelConfig]] = {}
    for c in [*DECLARED, *get_kernel_progression_configs(True)]:
        by_tiles.setdefault((c.dtype, c.d_head, c.B_r, c.B_c, c.n_warps), []).append(c)
    ends = [c for group in by_tiles.values() for c in (min(group), max(group))]
    return sorted({*ends, *PROGRESSION})


DECLARED_INSTANCES = [
    *(KernelId(c, FULL) for c in sorted({*DECLARED, *KNOBS.values()})),
    *(KernelId(c, CAUSAL) for c in _ends_of_each_tile()),
]


def _triples(instance: KernelId) -> Iterator[tuple[object, ...]]:
    """Returns any three values, of knobs and the variant, that a kernel has at once."""
    return combinations([*asdict(instance.config).items(), instance.variant], 3)


# The emulator runs these of them: each knob changed, and each triple.
SAMPLED_INSTANCES = sorted(
    {*covering(DECLARED_INSTANCES, _triples), *(KernelId(c, FULL) for c in KNOBS.values())}
)
