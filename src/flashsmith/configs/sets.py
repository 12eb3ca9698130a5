"""Named sets of configurations, for the keys of commands and of KERNELS."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from flashsmith import settings
from flashsmith.configs.base import ForwardKernelConfig, KernelConfig
from flashsmith.configs.family import DeclaredSets
from flashsmith.configs.kernel_id import sort_key
from flashsmith.configs.names import is_kernel_name, parse_kernel_name_into_config
from flashsmith.configs.registry import BACKWARD, DECODE, FORWARD
from flashsmith.configs.sm80.forward import FlashForwardKernelConfig
from flashsmith.configs.sm80.forward_space import (
    get_autotuning_kernel_configs,
    get_kernel_progression_configs,
)
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.configs.sm90.forward_space import (
    get_sm90_autotuning_kernel_configs,
    get_sm90_kernel_progression_configs,
)
from flashsmith.configs.sm90.fp8_space import get_fp8_kernel_configs

C = TypeVar("C", bound=ForwardKernelConfig)


def get_kernels_to_build() -> list[FlashForwardKernelConfig]:
    """Returns the default set: the tuning space and the progression, unique and sorted (85)."""
    return _union(get_autotuning_kernel_configs(), get_kernel_progression_configs())


def get_sm90_kernels_to_build() -> list[Sm90ForwardKernelConfig]:
    """Returns the tuning space and the progression of the sm90 family, unique and sorted."""
    return _union(get_sm90_autotuning_kernel_configs(), get_sm90_kernel_progression_configs())


def _union(*sets: Iterable[C]) -> list[C]:
    unique = {config for configs in sets for config in configs}
    return sorted(unique, key=sort_key)


def _both(sets: DeclaredSets[C]) -> list[C]:
    return _union(sets.tuning_space(), sets.progression())


_SETS: dict[str, Callable[[], Sequence[KernelConfig]]] = {
    key: make
    for sets in (family.sets for family in FORWARD.families)
    for key, make in (
        (sets.keys.progression, sets.progression),
        (sets.keys.tuning, sets.tuning_space),
        (sets.keys.both, partial(_both, sets)),
    )
} | {
    settings.BACKWARD_SET: BACKWARD.heuristic_configs,
    settings.DECODE_SET: DECODE.heuristic_configs,
    settings.FP8_SET: get_fp8_kernel_configs,
}


def get_kernel_configs(kernels_key: str | None = None) -> list[KernelConfig]:
    """Returns the set of configurations called `kernels_key`.

    The keys are: prog and every key that begins with it: the progression, in order, and with "all"
    in the key (progall, prog-all) at all block sizes; all: the kernels that are built by default;
    tune: the tuning space; "B_r,B_c", as in "64,32": the tuning space at these block sizes;
    sm90-prog, sm90-tune, sm90: progression, tuning space and both, of the sm90 family; backward,
    decode, fp8: the heuristics' choices of all backward families, of decode, and of the FP8
    forward. None or empty means the environment variable KERNELS, and "all" if that is unset.

    Raises:
        ValueError: There is no such set; the message lists the keys.
    """
    if kernels_key is None or not kernels_key.strip():
        kernels_key = settings.KERNELS.get() or settings.DEFAULT_SET
    key = kernels_key.strip().lower()
    if key.startswith(settings.SM80_SETS.progression):
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


def select_kernel_configs(selectors: Sequence[str] = ()) -> list[KernelConfig]:
    """Returns the configurations that words select: keys of get_kernel_configs, and kernel names.

    Each is listed once, in the order of the words; no words mean `get_kernel_configs()`.

    Raises:
        ValueError: A word is neither a key nor a name.
    """
    if not selectors:
        return get_kernel_configs()
    chosen: list[KernelConfig] = []
    for selector in selectors:
        if is_kernel_name(selector):
            chosen.append(parse_kernel_name_into_config(selector))
        else:
            chosen.extend(get_kernel_configs(selector))
    return list(dict.fromkeys(chosen))
