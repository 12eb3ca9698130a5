"""C++ text -> shared library: compilers, ninja, the kernel cache, what ptxas says."""

from flashsmith.build.cache import KernelCache
from flashsmith.build.compile import Progress, default_jobs
from flashsmith.build.kernel_sources import kernel_source_hash, kernel_source_stamp, stamp_field
from flashsmith.build.library import (
    Library,
    build_library,
    built_instances,
    find_library,
    list_libraries,
)
from flashsmith.build.ptxas import KernelResources
from flashsmith.build.target import DEFAULT_CUDA_ARCHS, Target
from flashsmith.build.toolchain import (
    Compiler,
    CudaToolkit,
    TvmFfi,
    find_cuda_toolkit,
    find_cxx,
    find_ninja,
    find_tvm_ffi,
)
from flashsmith.build.units import PACKAGE_SOURCES, SourceTree, source_hash

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
