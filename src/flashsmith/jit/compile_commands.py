"""The compile commands of host and kernels, from which editors understand the C++ sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from flashsmith.configs import KernelId
from flashsmith.jit.cache import KernelCache
from flashsmith.jit.host import build_host
from flashsmith.jit.kernel_compilers import HostToolchain, NvccCompiler, find_kernel_compiler
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
    compiler = find_kernel_compiler(target, build_host(sources=sources).path, csrc)
    cuda = compiler.cuda if isinstance(compiler, NvccCompiler) else None
    units = plan_kernels(wanted, sources.generate(wanted), target, compiler, csrc)
    # Editors take one command of a file: that of the last architecture.
    of_files = {unit.name: unit for unit in units}.values()
    return [
        *(_entry(unit, csrc, csrc / unit.label) for unit in plan_host(HostToolchain.find(), csrc)),
        *(
            _kernel_entry(unit, kernels / unit.entry, cuda)
            for unit in of_files
            if (kernels / unit.entry / unit.source_file).exists()
        ),
    ]


def _kernel_entry(unit: TranslationUnit, folder: Path, cuda: CudaToolkit | None) -> Command:
    if cuda is None:
        return _entry(unit, folder, folder / unit.source_file)
    command = ["clang++", *_clang_flags(unit.command, unit.arch, cuda)]
    return _entry(replace(unit, command=tuple(command)), folder, folder / unit.source_file)


def _entry(unit: TranslationUnit, folder: Path, file: Path) -> Command:
    return {"directory": str(folder), "file": str(file), "arguments": [*unit.command, str(file)]}


def _clang_flags(nvcc: Iterable[str], arch: str, cuda: CudaToolkit) -> Iterator[str]:
    """Yields clang's flags for CUDA: clang compiles CUDA itself and knows few of nvcc's flags."""
    yield from ("-x", "cuda", f"--cuda-path={cuda.root}", f"--cuda-gpu-arch={arch}")
    yield from (flag for flag in nvcc if flag.startswith(("-std=", "-I")))
