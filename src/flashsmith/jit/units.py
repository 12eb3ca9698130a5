"""The units to compile: the command of each source, and the cache key of its object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flashsmith.configs import KernelConfig, KernelId
from flashsmith.jit.binary import find_libc
from flashsmith.jit.cache import entry_name
from flashsmith.jit.headers import hash_json
from flashsmith.jit.lint import may_release
from flashsmith.jit.sources import (
    REGISTRY_SOURCE,
    Source,
    host_roots,
    kernel_roots,
    read_sources,
)
from flashsmith.jit.target import Target
from flashsmith.jit.toolchain import (
    Compiler,
    CudaToolkit,
    TvmFfi,
    find_cuda_toolkit,
    find_cxx,
    find_tvm_ffi,
)

# The format of cache entries and of the rules that refuse kernels; it is part of every key.
FORMAT = 5

# Symbols are hidden because several libraries live in one process, and none may bind to another's
# symbols.
_HOST_FLAGS = ("-std=c++20", "-fPIC", "-fvisibility=hidden")
# Emulated kernels run as fast with -O1, which takes a quarter less time to compile. The kernels'
# map is compiled for every library and read only at the first look-up, so it is not optimised.
_OPTIMISED, _OPTIMISED_KERNEL, _NOT_OPTIMISED = "-O2", "-O1", "-O0"
# Contraction is off: the emulator rounds where the kernel says so.
_EMULATOR_FLAGS = ("-DFLASHSMITH_EMULATOR", "-ffp-contract=off")
NVCC_FLAGS = ("-std=c++20", "-O3", "-Xptxas=-v", "-Xcompiler=-fPIC,-fvisibility=hidden")
# -z defs makes a missing symbol an error here, not when the library is loaded. exclude-libs keeps
# the static CUDA runtime from binding to the one that torch has loaded. There is no rpath, because
# tvm_ffi is in the process before the library is loaded, on any machine.
_LINK_FLAGS = ("-shared", "-Wl,-z,defs", "-Wl,--exclude-libs,ALL")
_CUDA_LINK_LIBRARIES = ("-ldl", "-lrt", "-lpthread")


@dataclass(frozen=True)
class Toolchain:
    """The compilers for one target."""

    cxx: Compiler
    tvm_ffi: TvmFfi
    cuda: CudaToolkit | None  # None for the emulator
    libc: str = ""  # the C library whose headers and symbols are used

    @property
    def identity(self) -> str:
        nvcc = [self.cuda.nvcc.identity] if self.cuda else []
        return "\n".join([*nvcc, self.cxx.identity, self.libc])


@dataclass(frozen=True)
class TranslationUnit(Source):
    """A source with its command; ``key`` hashes everything that the object depends on."""

    command: tuple[str, ...]  # without source and output
    key: str
    linted_archs: tuple[str, ...]  # architectures whose machine code the lint covers

    @property
    def entry(self) -> str:
        """The folder of the object in the cache."""
        return entry_name(self.name, self.key)

    @property
    def object_file(self) -> str:
        return f"{self.name}.o"


def find_toolchain(target: Target) -> Toolchain:
    """Returns the compilers that ``target`` needs; raises ToolchainError for a missing one."""
    cuda = find_cuda_toolkit() if target.kind == "cuda" else None
    return Toolchain(find_cxx(), find_tvm_ffi(), cuda, find_libc())


def plan_units(
    instances: Sequence[KernelId],
    generated: Mapping[str, str],
    target: Target,
    toolchain: Toolchain,
    csrc: Path,
) -> list[TranslationUnit]:
    """Returns the units of ``read_sources`` in the same order."""
    sources = read_sources(instances, generated, target, csrc)
    return [_plan_unit(source, target, toolchain, csrc) for source in sources]


def _plan_unit(source: Source, target: Target, toolchain: Toolchain, csrc: Path) -> TranslationUnit:
    if source.instance is None:
        flags, command = _host_command(source, toolchain, csrc)
    else:
        flags, command = _kernel_command(source.instance.config, target, toolchain, csrc)
    # Paths are not in the key: the same text and compiler give the same object anywhere.
    parts = [source.files, source.headers.hash, flags, toolchain.identity, target.name]
    linted_archs: tuple[str, ...] = ()
    if source.instance and toolchain.cuda and may_release(source.texts):
        linted_archs = archs_of(source.instance.config, target)
    return TranslationUnit(
        **vars(source),
        command=tuple(command),
        key=hash_json([FORMAT, *parts]),
        linted_archs=linted_archs,
    )


def link_command(
    toolchain: Toolchain, objects: Iterable[Path | str], output: str
) -> tuple[str, ...]:
    """Returns the command that links a shared library. The library needs libtvm_ffi.so by name
    only, because Python has loaded it."""
    cuda = [toolchain.cuda.cudart_static, *_CUDA_LINK_LIBRARIES] if toolchain.cuda else []
    tvm_ffi = [f"-L{toolchain.tvm_ffi.library}", "-ltvm_ffi"]
    parts = [toolchain.cxx.path, *_LINK_FLAGS, *objects, *cuda, *tvm_ffi, "-o", output]
    return tuple(map(str, parts))


def library_key(units: Sequence[TranslationUnit], target: Target, tvm_ffi: TvmFfi) -> str:
    parts = [
        FORMAT,
        target.name,
        sorted(unit.key for unit in units),
        _LINK_FLAGS,
        _CUDA_LINK_LIBRARIES,
        tvm_ffi.version,
    ]
    return hash_json(parts)


def _kernel_command(
    config: KernelConfig, target: Target, toolchain: Toolchain, csrc: Path
) -> tuple[Sequence[str], Sequence[str]]:
    """Returns the flags that go into the key, and the whole command."""
    includes = [f"-I{path}" for path in kernel_roots(csrc, target)]
    if toolchain.cuda is None:
        flags = [*_HOST_FLAGS, _OPTIMISED_KERNEL, *_EMULATOR_FLAGS, "-x", "c++"]
        paths = [*includes, f"-ffile-prefix-map={csrc}/="]
        return flags, [str(toolchain.cxx.path), *flags, *paths]
    flags = [*NVCC_FLAGS, *_gencode(config, target)]
    compilers = [str(toolchain.cuda.nvcc.path), f"-ccbin={toolchain.cxx.path}"]
    return flags, [*compilers, *flags, *includes]


def archs_of(config: KernelConfig, target: Target) -> tuple[str, ...]:
    """Returns the architectures of ``target`` for which a kernel is compiled."""
    if not config.exact_arch:
        return target.archs
    needed = config.minimum_gpu
    if needed not in target.archs:
        raise ValueError(
            f"archs is {', '.join(target.archs)}, but config {config} runs on {needed} alone; "
            f"add {needed}"
        )
    return (needed,)


def _gencode(config: KernelConfig, target: Target) -> list[str]:
    archs = archs_of(config, target)
    if config.exact_arch:
        return [f"-gencode=arch=compute_{archs[0][3:]},code={archs[0]}"]
    # One front-end run and one PTX serve all architectures if the family uses nothing newer.
    # Otherwise each group of newer architectures gets another run, which alone compiles the newer
    # instructions.
    groups: dict[str, list[str]] = {
        minimum: [] for minimum in (config.minimum_gpu, *config.newer_gpus)
    }
    for arch in archs:
        own = [minimum for minimum in config.newer_gpus if _is_as_new(arch, minimum)]
        groups[own[-1] if own else config.minimum_gpu].append(arch)
    return [
        f"-gencode=arch=compute_{minimum[3:]},code=[{','.join(group)}]"
        for minimum, group in groups.items()
        if group
    ]


def _is_as_new(arch: str, minimum: str) -> bool:
    number, needed = (int(name[3:].rstrip("af")) for name in (arch, minimum))
    return number >= needed


def _host_command(
    source: Source, toolchain: Toolchain, csrc: Path
) -> tuple[Sequence[str], Sequence[str]]:
    """Returns ``_kernel_command`` for a file of csrc/host or csrc/emulator."""
    is_map = source.source_file == REGISTRY_SOURCE
    flags = [*_HOST_FLAGS, _NOT_OPTIMISED if is_map else _OPTIMISED]
    includes = [*host_roots(csrc), toolchain.tvm_ffi.include]
    if toolchain.cuda is None:
        flags += _EMULATOR_FLAGS
    else:
        includes.append(toolchain.cuda.include)
    paths = [*(f"-I{path}" for path in includes), f"-ffile-prefix-map={csrc}/="]
    key_flags = [*flags, f"tvm_ffi {toolchain.tvm_ffi.version}"]
    return key_flags, [str(toolchain.cxx.path), *flags, *paths]
