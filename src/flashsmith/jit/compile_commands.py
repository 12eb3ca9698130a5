"""The compile commands of host and kernels, from which editors understand the C++ sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from flashsmith.configs import KernelId
from flashsmith.jit.cache import KernelCache
from flashsmith.jit.host import build_host
from flashsmith.jit.kernel_compilers import (
    HostToolchain,
    NvccCompiler,
    NvrtcCompiler,
    find_kernel_compiler,
)
from flashsmith.jit.sources import PACKAGE_SOURCES, SourceTree
from flashsmith.jit.target import Target
from flashsmith.jit.toolchain import CudaToolkit
from flashsmith.jit.units import TranslationUnit, plan_host, plan_kernels

COMPILE_COMMANDS = "compile_commands.json"  # the only name that clangd looks for

Command = dict[str, str | list[str]]


def compile_commands(
    instances: Iterable[KernelId], target: Target, *, sources: SourceTree = PACKAGE_SOURCES
) -> list[Command]:
    """Returns an entry for each file of the host library and of ``instances``, in clang's format.

    Host files are in ``sources``, generated files in the cache; a kernel that was not built has no
    entry. Raises ToolchainError as ``build_kernels`` does.
    """
    wanted = sorted(set(instances))
    csrc, kernels = sources.csrc, KernelCache().kernels
    host = build_host(sources=sources).path
    compiler = find_kernel_compiler(target, host, csrc)
    units = plan_kernels(wanted, sources.generate(wanted), target, compiler, csrc)
    # Editors take one command of a file: that of the last architecture.
    of_files = {unit.name: unit for unit in units}.values()
    built = [
        (unit, kernels / unit.entry)
        for unit in of_files
        if (kernels / unit.entry / unit.source_file).exists()
    ]

    def command(unit: TranslationUnit) -> Sequence[str]:
        assert unit.instance is not None
        if isinstance(compiler, NvccCompiler):
            return ["clang++", *_clang_flags(unit.command, unit.arch, compiler.cuda)]
        if isinstance(compiler, NvrtcCompiler):  # no editor knows it, and it needs no toolkit
            plain = find_kernel_compiler(Target.emulator(), host, csrc)
            return plain.command(unit.instance.config, "", csrc)
        return unit.command

    of_host = plan_host(HostToolchain.find(), csrc)
    return [
        *(_entry(unit.command, csrc, csrc / unit.label) for unit in of_host),
        *(_entry(command(unit), folder, folder / unit.source_file) for unit, folder in built),
    ]


def _entry(command: Sequence[str], folder: Path, file: Path) -> Command:
    return {"directory": str(folder), "file": str(file), "arguments": [*command, str(file)]}


def _clang_flags(nvcc: Iterable[str], arch: str, cuda: CudaToolkit) -> Iterator[str]:
    """Yields clang's flags for CUDA: clang compiles CUDA itself and knows few of nvcc's flags."""
    yield from ("-x", "cuda", f"--cuda-path={cuda.root}", f"--cuda-gpu-arch={arch}")
    yield from (flag for flag in nvcc if flag.startswith(("-std=", "-I")))
