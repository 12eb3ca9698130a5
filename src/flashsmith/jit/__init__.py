"""C++ text -> shared library: compilers, ninja, the kernel cache, ptxas output, and the lint."""

from flashsmith.jit.apart import build_apart
from flashsmith.jit.cache import KernelCache
from flashsmith.jit.compile import Progress, default_jobs
from flashsmith.jit.compile_commands import COMPILE_COMMANDS, compile_commands
from flashsmith.jit.kernel_sources import kernel_source_hash, kernel_source_stamp, stamp_field
from flashsmith.jit.library import build_library
from flashsmith.jit.lookup import Library, built_instances, find_library, list_libraries
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
    "KernelCache",
    "KernelResources",
    "Library",
    "Progress",
    "SourceTree",
    "Target",
    "TvmFfi",
    "build_apart",
    "build_library",
    "built_instances",
    "compile_commands",
    "default_jobs",
    "find_cuda_toolkit",
    "find_cxx",
    "find_library",
    "find_ninja",
    "find_tvm_ffi",
    "kernel_source_hash",
    "kernel_source_stamp",
    "list_libraries",
    "show_progress",
    "source_hash",
    "stamp_field",
]
