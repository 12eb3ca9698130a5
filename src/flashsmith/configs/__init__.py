"""What can be built: configurations, their names, their legality and the declared sets of them.

Standard library only.
"""

from flashsmith.configs.dtype import DType
from flashsmith.configs.forward import FlashForwardKernelConfig
from flashsmith.configs.gpu import (
    GPU_ARCHITECTURES,
    HOPPER_COMPUTE_CAPABILITY,
    GpuArchitecture,
    get_gpu_architecture,
    is_hopper_arch,
)
from flashsmith.configs.gpu_models import GPU_MODELS
from flashsmith.configs.hopper import HopperForwardKernelConfig
from flashsmith.configs.hopper_spaces import (
    HopperTiles,
    get_hopper_autotuning_kernel_configs,
    get_hopper_kernel_progression_configs,
    make_hopper_config,
)
from flashsmith.configs.instance import (
    CONFIG_CLASSES,
    ForwardKernelConfig,
    ForwardKernelInstance,
    require_buildable,
)
from flashsmith.configs.parse import (
    is_cpp_name,
    is_kernel_name,
    parse_kernel_name_into_config,
    parse_kernel_name_into_instance,
)
from flashsmith.configs.spaces import (
    get_autotuning_kernel_configs,
    get_hopper_kernels_to_build,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
    select_kernel_configs,
    should_autotune_config,
)
from flashsmith.configs.variant import CAUSAL, FORWARD_VARIANTS, FULL, ForwardVariant

__all__ = [
    "CAUSAL",
    "CONFIG_CLASSES",
    "FORWARD_VARIANTS",
    "FULL",
    "GPU_ARCHITECTURES",
    "GPU_MODELS",
    "HOPPER_COMPUTE_CAPABILITY",
    "DType",
    "FlashForwardKernelConfig",
    "ForwardKernelConfig",
    "ForwardKernelInstance",
    "ForwardVariant",
    "GpuArchitecture",
    "HopperForwardKernelConfig",
    "HopperTiles",
    "get_autotuning_kernel_configs",
    "get_gpu_architecture",
    "get_hopper_autotuning_kernel_configs",
    "get_hopper_kernel_progression_configs",
    "get_hopper_kernels_to_build",
    "get_kernel_configs",
    "get_kernel_progression_configs",
    "get_kernels_to_build",
    "is_cpp_name",
    "is_hopper_arch",
    "is_kernel_name",
    "make_hopper_config",
    "parse_kernel_name_into_config",
    "parse_kernel_name_into_instance",
    "require_buildable",
    "select_kernel_configs",
    "should_autotune_config",
]
