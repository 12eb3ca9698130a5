"""The family of forward kernels of the sm90 architecture."""

from flashsmith import settings
from flashsmith.configs.family import Family
from flashsmith.configs.sm90.forward import SUPPORTED_D_HEADS, Sm90ForwardKernelConfig
from flashsmith.configs.sm90.forward_space import (
    get_sm90_autotuning_kernel_configs,
    get_sm90_kernel_progression_configs,
    rule,
    small_tiles,
)

SM90_FORWARD = Family(
    config=Sm90ForwardKernelConfig,
    d_heads=SUPPORTED_D_HEADS,
    sets=settings.SM90_SETS,
    progression=get_sm90_kernel_progression_configs,
    tuning_space=get_sm90_autotuning_kernel_configs,
    rule=rule,
    small_tiles=small_tiles,
    rule_lengths=(128,),
    rule_in_words=(
        "one configuration of the sm90 family for each d_head, with smaller tiles where large ones "
        "would leave multiprocessors idle"
    ),
)
