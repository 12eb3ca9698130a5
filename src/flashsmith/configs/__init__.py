"""What can be built: configurations, their names, their legality and the declared sets of them.

Standard library only.
"""

from flashsmith.configs.dtype import DType
from flashsmith.configs.kernel_id import (
    CONFIG_CLASSES,
    ForwardKernelConfig,
    ForwardKernelInstance,
    require_buildable,
)
from flashsmith.configs.names import (
    is_cpp_name,
    is_kernel_name,
    parse_kernel_name_into_config,
    parse_kernel_name_into_instance,
)
from flashsmith.configs.sets import (
    get_kernel_configs,
    get_kernels_to_build,
    get_sm90_kernels_to_build,
    select_kernel_configs,
)
from flashsmith.configs.sm80.forward import FlashForwardKernelConfig
from flashsmith.configs.sm80.forward_space import (
    get_autotuning_kernel_configs,
    get_kernel_progression_configs,
    should_autotune_config,
)
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.configs.sm90.forward_space import (
    Sm90Tiles,
    get_sm90_autotuning_kernel_configs,
    get_sm90_kernel_progression_configs,
    make_sm90_config,
)
from flashsmith.configs.variant import CAUSAL, FORWARD_VARIANTS, FULL, ForwardVariant

__all__ = [
    "CAUSAL",
    "CONFIG_CLASSES",
    "FORWARD_VARIANTS",
    "FULL",
    "DType",
    "FlashForwardKernelConfig",
    "ForwardKernelConfig",
    "ForwardKernelInstance",
    "ForwardVariant",
    "Sm90ForwardKernelConfig",
    "Sm90Tiles",
    "get_autotuning_kernel_configs",
    "get_kernel_configs",
    "get_kernel_progression_configs",
    "get_kernels_to_build",
    "get_sm90_autotuning_kernel_configs",
    "get_sm90_kernel_progression_configs",
    "get_sm90_kernels_to_build",
    "is_cpp_name",
    "is_kernel_name",
    "make_sm90_config",
    "parse_kernel_name_into_config",
    "parse_kernel_name_into_instance",
    "require_buildable",
    "select_kernel_configs",
    "should_autotune_config",
]
