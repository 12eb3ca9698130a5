"""The kernels that can be built: configurations, their names, legality and declared sets.

This package needs the standard library only.
"""

from flashsmith.configs.base import (
    CONFIG_CLASSES,
    AttentionKernelConfig,
    BackwardKernelConfig,
    DecodeKernelConfig,
    ForwardKernelConfig,
    KernelConfig,
)
from flashsmith.configs.kernel_id import KernelId, require_buildable, sort_key
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
from flashsmith.configs.sm80.backward import FlashBackwardKernelConfig
from flashsmith.configs.sm80.decode import FlashDecodeKernelConfig
from flashsmith.configs.sm80.forward import FlashForwardKernelConfig
from flashsmith.configs.sm80.forward_space import (
    get_autotuning_kernel_configs,
    get_kernel_progression_configs,
    should_autotune_config,
)
from flashsmith.configs.sm80.sums_backward import Sm80SumsBackwardKernelConfig
from flashsmith.configs.sm90.backward import Sm90BackwardKernelConfig
from flashsmith.configs.sm90.decode import Sm90DecodeKernelConfig
from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig
from flashsmith.configs.sm90.forward_space import (
    Sm90Tiles,
    get_sm90_autotuning_kernel_configs,
    get_sm90_kernel_progression_configs,
    make_sm90_config,
)
from flashsmith.configs.sm90.split_backward import Sm90SplitBackwardKernelConfig
from flashsmith.configs.variant import CAUSAL, FULL, VARIANTS, Variant
from flashsmith.configs.workload import Workload
from flashsmith.dtype import DType

__all__ = [
    "CAUSAL",
    "CONFIG_CLASSES",
    "FULL",
    "VARIANTS",
    "AttentionKernelConfig",
    "BackwardKernelConfig",
    "DType",
    "DecodeKernelConfig",
    "FlashBackwardKernelConfig",
    "FlashDecodeKernelConfig",
    "FlashForwardKernelConfig",
    "ForwardKernelConfig",
    "KernelConfig",
    "KernelId",
    "Sm80SumsBackwardKernelConfig",
    "Sm90BackwardKernelConfig",
    "Sm90DecodeKernelConfig",
    "Sm90ForwardKernelConfig",
    "Sm90SplitBackwardKernelConfig",
    "Sm90Tiles",
    "Variant",
    "Workload",
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
    "sort_key",
]
