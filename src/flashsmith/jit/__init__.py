"""C++ text -> host library and kernels: compilers, ninja, the kernel cache, ptxas, the lint."""

from flashsmith.jit.apart import build_apart
from flashsmith.jit.build import build_kernels
from flashsmith.jit.cache import KernelCache
from flashsmith.jit.compile import Progress, default_jobs
from flashsmith.jit.compile_commands import COMPILE_COMMANDS, compile_commands
from flashsmith.jit.host import HostLibrary, build_host, find_host, why_no_host
from flashsmith.jit.kernel_sources import kernel_source_hash, kernel_source_stamp, stamp_field
from flashsmith.jit.module import (
    Module,
    built_instances,
    find_module,
    find_modules,
    list_modules,
    why_not_linted,
)
from flashsmith.jit.progress import show_progress
from flashsmith.jit.ptxas import KernelResources
from flashsmith.jit.sources import PACKAGE_SOURCES, SourceTree, source_hash
from flashsmith.jit.target import DEFAULT_CUDA_ARCHS, Target
from flashsmith.jit.toolchain import (
    Compiler,
    CudaToolkit,
    TvmFfi,
    find_cuda_toolkit,
    find_cxx,
    find_ninja,
    find_tvm_ffi,
)

__all__ = [
    "COMPILE_COMMANDS",
    "DEFAULT_CUDA_ARCHS",
    "PACKAGE_SOURCES",
    "Compiler",
    "CudaToolkit",
    "HostLibrary",
    "KernelCache",
    "KernelResources",
    "Module",
    "Progress",
    "SourceTree",
    "Target",
    "TvmFfi",
    "build_apart",
    "build_host",
    "build_kernels",
    "built_instances",
    "compile_commands",
    "default_jobs",
    "find_cuda_toolkit",
    "find_cxx",
    "find_host",
    "find_module",
    "find_modules",
    "find_ninja",
    "find_tvm_ffi",
    "kernel_source_hash",
    "kernel_source_stamp",
    "list_modules",
    "show_progress",
    "source_hash",
    "stamp_field",
    "why_no_host",
    "why_not_linted",
]
