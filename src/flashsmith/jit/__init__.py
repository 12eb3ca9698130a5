"""C++ text -> shared library: compilers, ninja, the kernel cache, what ptxas says."""

from flashsmith.jit.cache import KernelCache
from flashsmith.jit.compile import Progress, default_jobs
from flashsmith.jit.kernel_sources import kernel_source_hash, kernel_source_stamp, stamp_field
from flashsmith.jit.library import (
    Library,
    build_library,
    built_instances,
    find_library,
    list_libraries,
)
from flashsmith.jit.ptxas import KernelResources
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
from flashsmith.jit.units import PACKAGE_SOURCES, SourceTree, source_hash

__all__ = [
    "DEFAULT_CUDA_ARCHS",
    "PACKAGE_SOURCES",
    "Compiler",
    "CudaToolkit",
    "KernelCache",
    "KernelResources",
    "Library",
    "Progress",
    "SourceTree",
    "Target",
    "TvmFfi",
    "build_library",
    "built_instances",
    "default_jobs",
    "find_cuda_toolkit",
    "find_cxx",
    "find_library",
    "find_ninja",
    "find_tvm_ffi",
    "kernel_source_hash",
    "kernel_source_stamp",
    "list_libraries",
    "source_hash",
    "stamp_field",
]
