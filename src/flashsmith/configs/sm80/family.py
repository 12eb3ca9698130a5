"""The family of forward kernels of the sm80 architecture, and of those after it."""

from flashsmith import settings
from flashsmith.configs.family import Family
from flashsmith.configs.sm80.forward import SUPPORTED_VALUES, FlashForwardKernelConfig
from flashsmith.configs.sm80.forward_space import (
    get_autotuning_kernel_configs,
    get_kernel_progression_configs,
    rule,
    small_tiles,
)

_BLOCKS = ("B_r", "B_c", "n_warps")
SM80_FORWARD = Family(
    config=FlashForwardKernelConfig,
    d_heads=SUPPORTED_VALUES["d_head"],
    sets=settings.SM80_SETS,
    progression=get_kernel_progression_configs,
    tuning_space=get_autotuning_kernel_configs,
    rule=rule,
    small_tiles=small_tiles,
    rule_lengths=(64, 4096),
    rule_in_words=(
        "one configuration for each d_head, and one of half the rows where queries see few keys or "
        "large tiles would leave multiprocessors idle"
    ),
    block_values=tuple((name, SUPPORTED_VALUES[name]) for name in _BLOCKS),
)
