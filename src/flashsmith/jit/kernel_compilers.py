"""The compilers of kernels: nvcc or NVRTC for GPUs, a C++ compiler for the emulator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flashsmith import settings
from flashsmith.configs import KernelConfig
from flashsmith.errors import ToolchainError
from flashsmith.jit.binary import find_libc
from flashsmith.jit.nvrtc import Nvrtc, find_nvrtc
from flashsmith.jit.preludes import Prelude
from flashsmith.jit.sources import (
    KERNEL_SCRIPT,
    NVRTC_FOLDER,
    emulator_hash,
    kernel_roots,
    nvrtc_hash,
)
from flashsmith.jit.target import Target
from flashsmith.jit.toolchain import (
    Compiler,
    CudaToolkit,
    TvmFfi,
    find_cuda_toolkit,
    find_cxx,
    find_tvm_ffi,
    require_cxx20,
)

NVCC_FLAGS = ("-std=c++20", "-O3", "-Xptxas=-v")
CXX_FLAGS = ("-std=c++20", "-fPIC")
# Contraction is off: the emulator rounds where the kernel says so.
EMULATOR_FLAGS = ("-DFLASHSMITH_EMULATOR", "-ffp-contract=off")
# -z defs makes a missing symbol an error here, not when the file is loaded.
LINK_FLAGS = ("-shared", "-Wl,-z,defs")
# Emulated kernels run as fast by these as by -O1, which takes a third more time to compile; clang
# passes over the second.
_OPTIMISATION = ("-Og", "-finline-functions-called-once")
_EMULATED_COMPILE_FLAGS = (*CXX_FLAGS, *_OPTIMISATION, *EMULATOR_FLAGS)
# Kernels call the host library and the C library alone: to look into the C++ library, too, would
# take longer than the rest of the link. The linker leaves out a library that comes before the
# objects unless it is told not to.
_LIBRARIES = ("-Wl,--no-as-needed", "-nodefaultlibs", "-lm", "-lc")
_EMULATED_FLAGS = (*_EMULATED_COMPILE_FLAGS, *LINK_FLAGS, *_LIBRARIES)
# A generated file includes the header of its family first, which is nearly all that is compiled.
_FIRST_INCLUDE = re.compile(r"^#include .*\n", re.MULTILINE)


class KernelCompiler(Protocol):
    """Compiles a generated file to a kernel's module."""

    @property
    def identity(self) -> str:
        """All that the module depends on beside text and flags, for cache keys."""

    @property
    def artifact(self) -> str:
        """The name of the module's file."""

    @property
    def emulator(self) -> str:
        """The hash of the emulator's sources, whose functions the module calls; empty for GPUs."""

    @property
    def libc(self) -> str:
        """The C library that the module needs; empty: none."""

    def require_cxx20(self) -> None:
        """Raises ToolchainError unless the C++ compiler, if one is used, supports C++20."""

    def require_arch(self, arch: str) -> None:
        """Raises ToolchainError for an architecture that is known not to be supported."""

    def flags(self, config: KernelConfig, arch: str) -> list[str]:
        """Returns the flags that go into cache keys: without paths, since the same text and
        compiler give the same module anywhere."""

    def command(self, config: KernelConfig, arch: str, csrc: Path) -> list[str]:
        """Returns the command, which the source, -o and the output follow.

        arch: The architecture; empty on the emulator.
        """

    def prelude(self, text: str, csrc: Path) -> Prelude | None:
        """Returns what may be compiled ahead for kernels whose generated text begins as this one;
        None for the compilers of GPUs."""


@dataclass(frozen=True)
class HostToolchain:
    """The compiler of the host library and of emulated kernels, for this machine or for the oldest
    one on which they have to run."""

    cxx: Compiler
    tvm_ffi: TvmFfi
    libc: str  # the C library whose headers and symbols are used
    link_flags: tuple[str, ...] = ()  # beside those of every compiler

    @classmethod
    def find(cls) -> HostToolchain:
        """Raises ToolchainError if a part is missing."""
        return cls(find_cxx(), find_tvm_ffi(), find_libc())

    @property
    def identity(self) -> str:
        return f"{self.cxx.identity}\n{self.libc}"


@dataclass(frozen=True)
class NvccCompiler:
    """nvcc, and the C++ compiler that preprocesses for it."""

    cuda: CudaToolkit
    cxx: Compiler
    artifact = "kernel.cubin"
    libc = ""
    emulator = ""

    @property
    def identity(self) -> str:
        return f"{self.cuda.nvcc.identity}\n{self.cxx.identity}"

    def require_cxx20(self) -> None:
        require_cxx20(self.cxx)

    def require_arch(self, arch: str) -> None:
        """Does nothing: nvcc itself says what it does not know."""

    def flags(self, config: KernelConfig, arch: str) -> list[str]:
        return [*NVCC_FLAGS, "-cubin", f"-gencode=arch={_virtual_arch(config, arch)},code={arch}"]

    def command(self, config: KernelConfig, arch: str, csrc: Path) -> list[str]:
        paths = [f"-ccbin={self.cxx.path}", *_includes(csrc, Target.cuda(arch))]
        return [str(self.cuda.nvcc.path), *self.flags(config, arch), *paths]

    def prelude(self, text: str, csrc: Path) -> Prelude | None:
        return None


@dataclass(frozen=True)
class EmulatorCompiler:
    """The C++ compiler of emulated kernels, and the host library whose functions these call."""

    toolchain: HostToolchain
    host: Path
    emulator: str
    artifact = "kernel.so"

    @property
    def identity(self) -> str:
        return f"{self.toolchain.identity}\nemulator {self.emulator}"

    @property
    def libc(self) -> str:
        return self.toolchain.libc

    def require_cxx20(self) -> None:
        require_cxx20(self.toolchain.cxx)

    def require_arch(self, arch: str) -> None:
        """Does nothing: the emulator has no architectures."""

    def flags(self, config: KernelConfig, arch: str) -> list[str]:
        return [*_EMULATED_FLAGS]

    def command(self, config: KernelConfig, arch: str, csrc: Path) -> list[str]:
        paths = self._paths(csrc)
        script = f"-Wl,--version-script={csrc / KERNEL_SCRIPT}"
        host = [str(self.host), *self.toolchain.link_flags]
        return [str(self.toolchain.cxx.path), *_EMULATED_FLAGS, *paths, script, *host, "-x", "c++"]

    def prelude(self, text: str, csrc: Path) -> Prelude | None:
        first = _FIRST_INCLUDE.search(text)
        flags = [*_EMULATED_COMPILE_FLAGS, *self._paths(csrc)]
        return Prelude.of(self.toolchain.cxx, first[0] if first else "", flags)

    def _paths(self, csrc: Path) -> list[str]:
        return [*_includes(csrc, Target.emulator()), f"-ffile-prefix-map={csrc}/="]


@dataclass(frozen=True)
class NvrtcCompiler:
    """NVRTC, which needs neither a toolkit nor a C++ compiler."""

    nvrtc: Nvrtc
    headers: str  # the hash of the standard headers
    artifact = "kernel.cubin"
    libc = ""
    emulator = ""

    @property
    def identity(self) -> str:
        return f"{self.nvrtc.identity}\nstandard headers {self.headers}"

    def require_cxx20(self) -> None:
        """Does nothing: NVRTC supports it."""

    def require_arch(self, arch: str) -> None:
        self.nvrtc.require_arch(arch)

    def flags(self, config: KernelConfig, arch: str) -> list[str]:
        # -default-device: functions of the translation unit that are for the host are compiled.
        return ["-std=c++20", "-default-device", "--ptxas-options=-v", f"-arch={arch}"]

    def command(self, config: KernelConfig, arch: str, csrc: Path) -> list[str]:
        headers = [*_includes(csrc, Target.cuda(arch)), f"-I{csrc / NVRTC_FOLDER}"]
        return self.nvrtc.command([*self.flags(config, arch), *headers])

    def prelude(self, text: str, csrc: Path) -> Prelude | None:
        return None


def find_kernel_compiler(
    target: Target, host: Path, csrc: Path, toolchain: HostToolchain | None = None
) -> KernelCompiler:
    """Returns the compiler of kernels for ``target``; raises ToolchainError for a missing one.

    host, toolchain: The host library and what compiles it, which only emulated kernels need.
    """
    if target.kind == "emulator":
        return EmulatorCompiler(toolchain or HostToolchain.find(), host, emulator_hash(csrc))
    return _find_cuda_compiler(csrc)


def _find_cuda_compiler(csrc: Path) -> KernelCompiler:
    """Returns the compiler that FLASHSMITH_CUDA_COMPILER names, else nvcc, else NVRTC."""
    chosen = settings.CUDA_COMPILER.get()
    if chosen == "nvrtc":
        return NvrtcCompiler(find_nvrtc(), nvrtc_hash(csrc))
    try:
        return NvccCompiler(find_cuda_toolkit(), find_cxx())
    except ToolchainError as no_nvcc:
        if chosen == "nvcc" or settings.NVCC.get() is not None:
            raise
        try:
            return NvrtcCompiler(find_nvrtc(), nvrtc_hash(csrc))
        except ToolchainError as error:
            raise ToolchainError(f"{error}\nNor can nvcc be used: {no_nvcc}") from None


def archs_of(config: KernelConfig, target: Target) -> tuple[str, ...]:
    """Returns the architectures of ``target`` for which a kernel is compiled; one empty name on the
    emulator."""
    if target.kind == "emulator":
        return ("",)
    if not config.exact_arch:
        return target.archs
    needed = config.minimum_gpu
    if needed not in target.archs:
        raise ValueError(
            f"archs is {', '.join(target.archs)}, but config {config} runs on {needed} alone; "
            f"add {needed}"
        )
    return (needed,)


def _includes(csrc: Path, target: Target) -> list[str]:
    return [f"-I{path}" for path in kernel_roots(csrc, target)]


def _virtual_arch(config: KernelConfig, arch: str) -> str:
    """Returns the architecture of the PTX: that of the oldest GPU of the family, or of the newest
    one whose instructions the family uses where there are such."""
    if config.exact_arch:
        return f"compute_{arch[3:]}"
    newer = [minimum for minimum in config.newer_gpus if _is_as_new(arch, minimum)]
    return f"compute_{[config.minimum_gpu, *newer][-1][3:]}"


def _is_as_new(arch: str, minimum: str) -> bool:
    number, needed = (int(name[3:].rstrip("af")) for name in (arch, minimum))
    return number >= needed
