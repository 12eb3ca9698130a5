"""The compile commands of a library, from which editors understand the C++ sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from flashsmith.configs import KernelId
from flashsmith.jit.cache import KernelCache
from flashsmith.jit.sources import PACKAGE_SOURCES, SourceTree
from flashsmith.jit.target import Target
from flashsmith.jit.toolchain import CudaToolkit
from flashsmith.jit.units import TranslationUnit, archs_of, find_toolchain, plan_units

COMPILE_COMMANDS = "compile_commands.json"  # the only name that clangd looks for

Command = dict[str, str | list[str]]


def compile_commands(
    instances: Iterable[KernelId], target: Target, *, sources: SourceTree = PACKAGE_SOURCES
) -> list[Command]:
    """Returns an entry for each file of the library of ``instances``, in clang's format.

    Host files are in ``sources``, generated files in the cache; a file that was not built has no
    entry. Raises ToolchainError as ``build_library`` does.
    """
    wanted = sorted(set(instances))
    toolchain = find_toolchain(target)
    units = plan_units(wanted, sources.generate(wanted), target, toolchain, sources.csrc)
    objects = KernelCache().objects
    return [
        _entry(unit, objects / unit.entry, target, toolchain.cuda, sources.csrc)
        for unit in units
        if (objects / unit.entry / unit.source_file).exists()
    ]


def _entry(
    unit: TranslationUnit, folder: Path, target: Target, cuda: CudaToolkit | None, csrc: Path
) -> Command:
    # Editors need the host file in the source tree, not its copy in the cache.
    file = csrc / unit.label if unit.instance is None else folder / unit.source_file
    command = list(unit.command)
    if unit.instance is not None and cuda is not None:
        arch = archs_of(unit.instance.config, target)[-1]
        command = ["clang++", *_clang_flags(unit.command, arch, cuda)]
    # The folder has the files that were generated for this one, like the map of the kernels.
    arguments = [*command, f"-I{folder}", "-c", str(file)]
    return {"directory": str(folder), "file": str(file), "arguments": arguments}


def _clang_flags(nvcc: Iterable[str], arch: str, cuda: CudaToolkit) -> Iterator[str]:
    """Yields clang's flags for CUDA: clang compiles CUDA itself and knows few of nvcc's flags."""
    yield from ("-x", "cuda", f"--cuda-path={cuda.root}", f"--cuda-gpu-arch={arch}")
    yield from (flag for flag in nvcc if flag.startswith(("-std=", "-I")))
