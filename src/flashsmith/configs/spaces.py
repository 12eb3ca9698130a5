"""The declared sets of configurations: to tune over, to show step by step, to build."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

from flashsmith import settings
from flashsmith.configs.dtype import DType
from flashsmith.configs.forward import FlashForwardKernelConfig
from flashsmith.configs.hopper import HopperForwardKernelConfig
from flashsmith.configs.hopper_spaces import (
    get_hopper_autotuning_kernel_configs,
    get_hopper_kernel_progression_configs,
)
from flashsmith.configs.instance import ForwardKernelConfig
from flashsmith.configs.parse import is_kernel_name, parse_kernel_name_into_config

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


def get_kernels_to_build() -> list[FlashForwardKernelConfig]:
    """The default set: the tuning space and the progression, unique and sorted (85)."""
    return sorted({*get_autotuning_kernel_configs(), *get_kernel_progression_configs()})


def get_hopper_kernels_to_build() -> list[HopperForwardKernelConfig]:
    """The tuning space and the progression of the sm90 family, unique and sorted."""
    return sorted(
        {*get_hopper_autotuning_kernel_configs(), *get_hopper_kernel_progression_configs()}
    )


_SETS: dict[str, Callable[[], Sequence[ForwardKernelConfig]]] = {
    "all": get_kernels_to_build,
    "tune": get_autotuning_kernel_configs,
    "hopper-prog": get_hopper_kernel_progression_configs,
    "hopper-tune": get_hopper_autotuning_kernel_configs,
    "hopper": get_hopper_kernels_to_build,
}


def get_kernel_configs(kernels_key: str | None = None) -> list[ForwardKernelConfig]:
    """The set of configurations called `kernels_key`.

    Every key that begins with prog: the progression, in its order, with "all" in it (progall,
    prog-all) at all block sizes; all: what is built by default; tune: the tuning space; "B_r,B_c"
    as in "64,32": the tuning space at these block sizes; hopper-prog, hopper-tune, hopper:
    progression, tuning space and both of the sm90 family. None or empty: what the environment
    variable KERNELS says, and "all" where it is unset.

    Raises:
        ValueError: there is no such set; the message lists the keys.
    """
    if kernels_key is None or not kernels_key.strip():
        kernels_key = settings.KERNELS.get() or "all"
    key = kernels_key.strip().lower()
    if key.startswith("prog"):
        return list(get_kernel_progression_configs(all_block_sizes="all" in key))
    if key in _SETS:
        return list(_SETS[key]())
    tuning_space = get_autotuning_kernel_configs()
    if block := re.fullmatch(r"(\d+)\s*,\s*(\d+)", key):
        B_r, B_c = int(block[1]), int(block[2])
        if configs := [cfg for cfg in tuning_space if (cfg.B_r, cfg.B_c) == (B_r, B_c)]:
            return list(configs)
    pairs = " ".join(
        f'"{B_r},{B_c}"' for B_r, B_c in sorted({(c.B_r, c.B_c) for c in tuning_space})
    )
    valid = ", ".join(settings.KERNEL_SETS)
    raise ValueError(
        f"kernels key {kernels_key!r} is not known; valid are {valid}, with B_r,B_c of the tuning "
        f"space: {pairs}"
    )


def select_kernel_configs(selectors: Sequence[str] = ()) -> list[ForwardKernelConfig]:
    """The configurations that words choose: keys of get_kernel_configs, and kernel names.

    Each once, in the order of the words; no words stand for `get_kernel_configs()`.

    Raises:
        ValueError: a word is neither a key nor a name.
    """
    if not selectors:
        return get_kernel_configs()
    chosen: list[ForwardKernelConfig] = []
    for selector in selectors:
        if is_kernel_name(selector):
            chosen.append(parse_kernel_name_into_config(selector))
        else:
            chosen.extend(get_kernel_configs(selector))
    return list(dict.fromkeys(chosen))
