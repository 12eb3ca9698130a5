#!/usr/bin/env python3
"""Compiles the kernels that tables and heuristics choose with several compilers, and reports each.

    python tools/build/compilers.py --out benchmarks/results/compilers.csv
    python tools/build/compilers.py --compilers nvcc-13.0 --archs sm_90a --sample 4

A row is written for each compiler, kernel and architecture: registers, spilled bytes, the lint's
findings, and ptxas' warnings about slow code. Compilers are installed from PyPI, each into a folder
below build/compilers. Rows that are in the file are kept, so that a run resumes where another
ended. The exit status is 1 if a row is unexpected: the kernel failed to compile, spills more than
jit/spills.py allows, or has a finding or a warning.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import _environment

_environment.enter()

from _units import first_finding, visit_units

from flashsmith import settings
from flashsmith.configs import (
    VARIANTS,
    KernelId,
    get_kernel_configs,
    parse_kernel_name_into_instance,
)
from flashsmith.gpus import get_gpu_architecture
from flashsmith.jit import PACKAGE_SOURCES, Target, find_cuda_toolkit, find_cxx
from flashsmith.jit.kernel_compilers import KernelCompiler, NvccCompiler, NvrtcCompiler
from flashsmith.jit.nvrtc import find_nvrtc
from flashsmith.jit.ptxas import parse_performance_warnings, parse_resources
from flashsmith.jit.sources import nvrtc_hash
from flashsmith.jit.spills import allowed_spill_bytes
from flashsmith.jit.units import TranslationUnit
from flashsmith.selection.served import gpus_with_tables, served_instances

ROOT = Path(__file__).resolve().parent.parent.parent
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
# The packages that pip installs for each compiler. Of version 12, only NVRTC's wheels are complete.
PACKAGES = {
    "nvrtc-12.8": ["nvidia-cuda-nvrtc-cu12==12.8.93"],
    "nvcc-13.0": [
        f"nvidia-{name}==13.0.88" for name in ("cuda-nvcc", "cuda-crt", "nvvm")
    ] + ["nvidia-cuda-runtime==13.0.96"],
    "nvcc-newest": [
        "nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime",
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A compiler's result for a kernel on an architecture. Bytes are per thread."""

    compiler: str
    version: str
    operation: str
    kernel: str
    arch: str
    registers: int = 0
    spilled: int = 0
    lint: str = ""  # the first finding
    slow: str = ""  # ptxas' warnings about slow code
    failure: str = ""  # the first error of a compiler that failed

    @property
    def is_unexpected(self) -> bool:
        allowed = allowed_spill_bytes(parse_kernel_name_into_instance(self.kernel))
        return self.spilled > allowed or bool(self.lint or self.slow or self.failure)


@dataclass(frozen=True)
class Made:
    """An object or cubin, and the compiler's log."""

    path: Path | None
    log: str


def chosen_kernels(arch: str) -> list[KernelId]:
    """Returns the kernels that attention, its gradients, decode and FP8 forwards choose on an
    architecture."""
    capability = get_gpu_architecture(arch).compute_capability
    found: set[KernelId] = set()
    for name in (*gpus_with_tables(arch), arch):
        found |= set(served_instances(name, capability=capability))
    for key in (settings.BACKWARD_SET, settings.DECODE_SET, settings.FP8_SET):
        configs = [cfg for cfg in get_kernel_configs(key) if cfg.runs_on(capability)]
        found |= {KernelId(cfg.adapted_to(v), v) for cfg in configs for v in VARIANTS}
    return sorted(kernel for kernel in found if kernel.config.is_buildable(arch))


def sample_of(kernels: Sequence[KernelId], n: int) -> list[KernelId]:
    """Returns ``n`` kernels of each family and operation, spread evenly over their order."""
    groups: dict[tuple[str, str], list[KernelId]] = {}
    for kernel in kernels:
        groups.setdefault((kernel.config.family, kernel.config.kernels_name()), []).append(kernel)
    return [g[i * len(g) // n] for g in groups.values() for i in range(min(n, len(g)))]


def install(name: str, folder: Path) -> Path:
    """Returns the folder of a compiler's packages, which are installed if they are missing."""
    place = folder / name
    if not (place / "nvidia").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--target", str(place), *PACKAGES[name]], check=True)
    return place


def compiler_at(name: str, place: Path) -> tuple[str, KernelCompiler]:
    """Returns a compiler with its version."""
    (package, *_) = place.glob("nvidia_cuda_nv*.dist-info")
    version = package.name.removesuffix(".dist-info").rpartition("-")[2]
    if name.startswith("nvrtc"):
        (library,) = place.glob("nvidia/*/lib/libnvrtc.so.1*")
        os.environ[settings.NVRTC.name] = str(library)
        return version, NvrtcCompiler(find_nvrtc(), nvrtc_hash(PACKAGE_SOURCES.csrc))
    (nvcc,) = place.glob("nvidia/*/bin/nvcc")
    os.environ[settings.NVCC.name] = str(nvcc)
    return version, NvccCompiler(find_cuda_toolkit(), find_cxx())


def _compile(unit: TranslationUnit, folder: Path) -> Made:
    made = folder / unit.artifact
    command = [*unit.command, str(folder / unit.source_file), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Made(made if done.returncode == 0 else None, done.stdout + done.stderr)


def rows_of(
    kernels: Sequence[KernelId],
    arch: str,
    name: str,
    version: str,
    compiler: KernelCompiler,
    jobs: int,
) -> Iterator[Row]:
    """Yields a row for each kernel, compiled in ``jobs`` threads."""

    def row_of(kernel: KernelId, unit: TranslationUnit, folder: Path) -> Row:
        row = partial(Row, name, version, kernel.config.kernels_name(), kernel.name, arch)
        made = _compile(unit, folder)
        if made.path is None:
            return row(failure=_first_error(made.log).replace(str(folder), "."))
        used = parse_resources(made.log)
        return row(
            registers=max(each.registers for each in used),
            spilled=max(each.spilled for each in used),
            lint=first_finding(unit, made.path),
            slow="; ".join(parse_performance_warnings(made.log)),
        )

    return visit_units(kernels, Target.cuda(arch), jobs, row_of, compiler)


def _first_error(log: str) -> str:
    lines = log.strip().splitlines() or ["no output"]
    return next((line for line in lines if "error" in line), lines[-1])


def read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    kinds = {field.name: field.type for field in fields(Row)}
    with path.open(newline="") as file:
        return [
            Row(**{n: int(v) if kinds[n] == "int" else v for n, v in line.items()})  # type: ignore[arg-type]
            for line in csv.DictReader(file)
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--compilers", default=",".join(PACKAGES), help="(default: %(default)s)")
    parser.add_argument("--archs", default=",".join(ARCHS), help="(default: %(default)s)")
    parser.add_argument("--sample", type=int, metavar="N", help="N of each family and operation")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=ROOT / "build/compilers.csv")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/compilers")
    options = parser.parse_args(arguments)
    before = read(options.out)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(Row)])
        writer.writerows(map(astuple, before))
        for name in options.compilers.split(","):
            version, compiler = compiler_at(name, install(name, options.folder))
            for arch in options.archs.split(","):
                kernels = chosen_kernels(arch)
                kernels = sample_of(kernels, options.sample) if options.sample else kernels
                done = {row.kernel for row in before if (row.compiler, row.arch) == (name, arch)}
                missing = [kernel for kernel in kernels if kernel.name not in done]
                for row in rows_of(missing, arch, name, version, compiler, options.jobs):
                    writer.writerow(astuple(row))
                    file.flush()
                    rows.append(row)
                print(f"{name} ({version}) {arch}: {len(missing)} kernels", flush=True)
    rows += before
    unexpected = [row for row in rows if row.is_unexpected]
    for row in unexpected:
        print(*astuple(row))
    print(f"{len(rows)} rows, {len(unexpected)} unexpected")
    return bool(unexpected)


if __name__ == "__main__":
    sys.exit(main())
