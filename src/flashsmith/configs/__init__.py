"""What can be built: configurations, their names, their legality and the declared sets of them.

Standard library only.
"""

from flashsmith.configs.dtype import DType
from flashsmith.configs.forward import FlashForwardKernelConfig, ForwardKernelInstance
from flashsmith.configs.gpu import GPU_ARCHITECTURES, GpuArchitecture, get_gpu_architecture
from flashsmith.configs.legality import require_buildable
from flashsmith.configs.parse import (
    parse_kernel_name_into_config,
    parse_kernel_name_into_instance,
)
from flashsmith.configs.spaces import (
    get_autotuning_kernel_configs,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
    select_kernel_configs,
    should_autotune_config,
)
from flashsmith.configs.variant import CAUSAL, FORWARD_VARIANTS, FULL, ForwardVariant

__all__ = [
    "CAUSAL",
    "FORWARD_VARIANTS",
    "FULL",
    "GPU_ARCHITECTURES",
    "DType",
    "FlashForwardKernelConfig",
    "ForwardKernelInstance",
    "ForwardVariant",
    "GpuArchitecture",
    "get_autotuning_kernel_configs",
    "get_gpu_architecture",
    "get_kernel_configs",
    "get_kernel_progression_configs",
    "get_kernels_to_build",
    "parse_kernel_name_into_config",
    "parse_kernel_name_into_instance",
    "require_buildable",
    "select_kernel_configs",
    "should_autotune_config",
]
