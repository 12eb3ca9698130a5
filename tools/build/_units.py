"""Generates the translation units of kernels, and visits them in parallel."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from flashsmith import codegen
from flashsmith.configs import KernelId
from flashsmith.jit import Target, find_cuda_toolkit, find_cxx
from flashsmith.jit.disassembler import disassemble
from flashsmith.jit.kernel_compilers import KernelCompiler, NvccCompiler
from flashsmith.jit.lint import lint_machine_code
from flashsmith.jit.sources import PACKAGE_SOURCES
from flashsmith.jit.units import TranslationUnit, plan_kernels

Found = TypeVar("Found")


def visit_units(
    kernels: Sequence[KernelId],
    target: Target,
    jobs: int,
    visit: Callable[[KernelId, TranslationUnit, Path], Found],
    compiler: KernelCompiler | None = None,
) -> Iterator[Found]:
    """Yields what ``visit`` returns for each kernel and architecture, in the order of the units.

    Args:
        visit: Takes a kernel, its unit, and a temporary folder with the unit's files. ``jobs``
            threads call it.
        compiler: The compiler of the units; default: nvcc.
    """
    generated = codegen.generate(kernels)
    compiler = compiler or NvccCompiler(find_cuda_toolkit(), find_cxx())
    units = plan_kernels(kernels, generated, target, compiler, PACKAGE_SOURCES.csrc)

    def visit_one(unit: TranslationUnit) -> Found:
        assert unit.instance is not None
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for file, text in unit.files.items():
                (folder / file).write_text(text)
            return visit(unit.instance, unit, folder)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(visit_one, units)


def compile_unit(unit: TranslationUnit, folder: Path) -> Path:
    """Compiles a unit whose files are in ``folder``, and returns its cubin.

    Raises:
        subprocess.CalledProcessError: The compiler failed.
    """
    made = folder / unit.artifact
    command = [*unit.command, str(folder / unit.source_file), "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return made


def first_finding(unit: TranslationUnit, made: Path) -> str:
    """Returns the first instruction that the lint refuses in a unit's cubin, or why it was not
    linted; empty if there is none."""
    if not unit.is_linted:
        return ""
    code = lint_machine_code(disassemble(made, unit.arch), [unit.arch])
    return "; ".join(map(str, (*code.early_releases, *code.not_linted)[:1]))
