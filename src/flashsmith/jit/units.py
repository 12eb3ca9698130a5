"""What there is to compile: translation units with their commands and content hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flashsmith import codegen
from flashsmith.configs import (
    CONFIG_CLASSES,
    ForwardKernelConfig,
    ForwardKernelInstance,
)
from flashsmith.jit.headers import Headers, hash_files, included
from flashsmith.jit.lint import may_release
from flashsmith.jit.target import Target
from flashsmith.jit.toolchain import (
    Compiler,
    CudaToolkit,
    TvmFfi,
    find_cuda_toolkit,
    find_cxx,
    find_tvm_ffi,
)

# Of cache entries and of what kernels are refused for; part of every key.
FORMAT = 2
REGISTRY_SOURCE = "registry.cpp"  # the one host file that reads the generated map

# hidden: several libraries live in one process, and none may bind to another's symbols.
_HOST_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden")
# No contraction: the emulator rounds where the kernel says so.
_EMULATOR_FLAGS = ("-DFLASHSMITH_EMULATOR", "-ffp-contract=off")
NVCC_FLAGS = ("-std=c++20", "-O3", "-Xptxas=-v", "-Xcompiler=-fPIC,-fvisibility=hidden")
# -z defs: a missing symbol is an error here, not when the library is loaded. exclude-libs: the
# static CUDA runtime must not bind to the one that torch has loaded. No rpath: tvm_ffi is in the
# process already when the library is loaded, on whatever machine that is.
_LINK_FLAGS = ("-shared", "-Wl,-z,defs", "-Wl,--exclude-libs,ALL")
_CUDA_LINK_LIBRARIES = ("-ldl", "-lrt", "-lpthread")

_HEADER_SUFFIXES = {".h", ".hpp", ".cuh", ".inl"}


@dataclass(frozen=True)
class SourceTree:
    """The C++ sources (folders include, host, emulator) and the generator of the kernels' text."""

    csrc: Path
    generate: Callable[[Sequence[ForwardKernelInstance]], dict[str, str]]


PACKAGE_SOURCES = SourceTree(Path(__file__).parent.parent / "csrc", codegen.generate)


@dataclass(frozen=True)
class Toolchain:
    """The compilers for one target."""

    cxx: Compiler
    tvm_ffi: TvmFfi
    cuda: CudaToolkit | None  # None for the emulator

    @property
    def identity(self) -> str:
        return "\n".join([*([self.cuda.nvcc.identity] if self.cuda else []), self.cxx.identity])


@dataclass(frozen=True)
class TranslationUnit:
    """One file to compile, with everything that its object depends on hashed into ``key``."""

    name: str  # the instance's slug, or the host file's stem
    label: str  # for people
    files: dict[str, str]  # file name -> text; the first is compiled, the rest it includes
    command: tuple[str, ...]  # without source and output
    key: str
    headers: Headers  # what it may include, as it is in ``key``
    instance: ForwardKernelInstance | None = None
    linted_archs: tuple[str, ...] = ()  # whose machine code has something to lint

    @property
    def entry(self) -> str:
        """Folder of the object in the cache."""
        return f"{self.name}-{self.key[:16]}"

    @property
    def source_file(self) -> str:
        return next(iter(self.files))

    @property
    def object_file(self) -> str:
        return f"{self.name}.o"


def find_toolchain(target: Target) -> Toolchain:
    """The compilers that ``target`` needs; raises ToolchainError that says what is missing."""
    cuda = find_cuda_toolkit() if target.kind == "cuda" else None
    return Toolchain(find_cxx(), find_tvm_ffi(), cuda)


def source_hash(csrc: Path, target: Target) -> str:
    """Hash of every C++ file of the project that goes into a library for ``target``."""
    return hash_files(csrc, _files_of(csrc, target, only_headers=False))


def plan_units(
    instances: Sequence[ForwardKernelInstance],
    generated: dict[str, str],
    target: Target,
    toolchain: Toolchain,
    csrc: Path,
) -> list[TranslationUnit]:
    """The host's (and the emulator's) units first, which all libraries share, then the kernels'."""
    paths = _files_of(csrc, target, only_headers=True)
    headers = {None: Headers.read(csrc, paths)} | {
        kind: Headers.read(csrc, _without_other_families(paths, kind)) for kind in CONFIG_CLASSES
    }

    def unit(
        name: str,
        label: str,
        files: dict[str, str],
        flags: Sequence[str],
        command: Sequence[str],
        instance: ForwardKernelInstance | None = None,
    ) -> TranslationUnit:
        # Paths are not in the key: the same text and compiler give the same object anywhere.
        included = headers[type(instance.config) if instance else None]
        parts = [FORMAT, files, included.hash, flags, toolchain.identity, target.name]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        linted_archs: tuple[str, ...] = ()
        if instance and toolchain.cuda and may_release(_texts(files, csrc)):
            linted_archs = _archs(instance.config, target)
        return TranslationUnit(
            name, label, files, tuple(command), key, included, instance, linted_archs
        )

    units = []
    flags, command = _host_command(target, toolchain, csrc)
    for folder in ("host", "emulator") if target.kind == "emulator" else ("host",):
        for path in sorted((csrc / folder).glob("*.cpp")):
            files = {path.name: path.read_text()}
            if path.name == REGISTRY_SOURCE:
                files[codegen.MAP_HEADER] = generated[codegen.MAP_HEADER]
            name = f"{folder}-{path.stem}"
            units.append(unit(name, f"{folder}/{path.name}", files, flags, command))

    for instance in instances:
        flags, command = _kernel_command(instance.config, target, toolchain, csrc)
        file_name = f"{instance.slug}.cu"
        files = {file_name: generated[file_name]}
        units.append(unit(instance.slug, instance.name, files, flags, command, instance))
    return units


def link_command(
    toolchain: Toolchain, objects: Iterable[Path | str], output: str
) -> tuple[str, ...]:
    """Links a shared library. It needs libtvm_ffi.so by name only; Python has loaded that."""
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
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _kernel_command(
    config: ForwardKernelConfig, target: Target, toolchain: Toolchain, csrc: Path
) -> tuple[Sequence[str], Sequence[str]]:
    """Flags that go into the key, and the whole command."""
    includes = [f"-I{csrc / 'include'}"]
    if toolchain.cuda is None:
        flags = [*_HOST_FLAGS, *_EMULATOR_FLAGS, "-x", "c++"]
        paths = [*includes, f"-I{csrc}", f"-ffile-prefix-map={csrc}/="]
        return flags, [str(toolchain.cxx.path), *flags, *paths]
    flags = [*NVCC_FLAGS, _gencode(config, target)]
    compilers = [str(toolchain.cuda.nvcc.path), f"-ccbin={toolchain.cxx.path}"]
    return flags, [*compilers, *flags, *includes]


def _archs(config: ForwardKernelConfig, target: Target) -> tuple[str, ...]:
    """The architectures of ``target`` that a kernel is compiled for."""
    if not config.exact_arch:
        return target.archs
    needed = config.minimum_gpu
    if needed not in target.archs:
        raise ValueError(
            f"archs is {', '.join(target.archs)}, but config {config} runs on {needed} alone; "
            f"add {needed}"
        )
    return (needed,)


def _gencode(config: ForwardKernelConfig, target: Target) -> str:
    archs = _archs(config, target)
    if not config.exact_arch:
        # One front-end run and one PTX for all architectures: the family uses nothing newer.
        return f"-gencode=arch=compute_{config.minimum_gpu[3:]},code=[{','.join(archs)}]"
    return f"-gencode=arch=compute_{archs[0][3:]},code={archs[0]}"


def _host_command(
    target: Target, toolchain: Toolchain, csrc: Path
) -> tuple[Sequence[str], Sequence[str]]:
    """As ``_kernel_command``, for the files of csrc/host and csrc/emulator."""
    flags = [*_HOST_FLAGS]
    includes = [csrc / "include", csrc, csrc / "host", toolchain.tvm_ffi.include]
    if toolchain.cuda is None:
        flags += _EMULATOR_FLAGS
        includes.append(csrc / "emulator")
    else:
        includes.append(toolchain.cuda.include)
    paths = [*(f"-I{path}" for path in includes), f"-ffile-prefix-map={csrc}/="]
    key_flags = [*flags, f"tvm_ffi {toolchain.tvm_ffi.version}"]
    return key_flags, [str(toolchain.cxx.path), *flags, *paths]


def _files_of(csrc: Path, target: Target, only_headers: bool) -> list[Path]:
    folders = ["include", "host", *(["emulator"] if target.kind == "emulator" else [])]
    return [
        path
        for folder in folders
        for path in sorted((csrc / folder).rglob("*"))
        if path.suffix in _HEADER_SUFFIXES or (path.suffix == ".cpp" and not only_headers)
    ]


def _without_other_families(headers: Iterable[Path], kind: type[ForwardKernelConfig]) -> list[Path]:
    """What a kernel of a family may include: no change of another's headers compiles it again."""
    others = {other.family for other in CONFIG_CLASSES if other is not kind}
    return [path for path in headers if path.parent.name not in others]


def _texts(files: Mapping[str, str], csrc: Path) -> Iterator[str]:
    for text in files.values():
        yield text
        yield from included(text, csrc / "include").values()


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
